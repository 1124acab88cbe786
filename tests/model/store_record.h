/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the store in the form of the model's. What is in none of the
 * tables of names is UNKNOWN then, and so differs from the model's.
 */
#ifndef TESTS_MODEL_STORE_RECORD_H
#define TESTS_MODEL_STORE_RECORD_H

#include "core/weight_lineage.h"
#include "core/weight_management.h"
#include "core/weight_record.h"
#include "state.h"

void revision_from(const struct weight_metadata *m, struct revision *ret);
void lease_from(const struct weight_lease *l, struct lease *ret);
void operation_from(const struct weight_operation *op, struct operation *ret);
void staging_from(const struct weight_staging *g, struct staging *ret);
/* l may be NULL: there is none. */
void lineage_from(const struct weight_lineage_record *l, struct lineage *ret);

#endif
