/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"
#include "core/memory_limit.h"

int config_usable_memory(const char *root, uint64_t *ret)
{
	return memory_limit_total(root, ret);
}
