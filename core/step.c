/* SPDX-License-Identifier: Apache-2.0 */
#include "core/step.h"

step_fn *step_hook;
