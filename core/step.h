/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: names for the instants between two effects, at which a kill may come.
 *
 * Code that changes the disk or the records in several steps names what it has
 * just done. A test that wants to die there sets a hook; otherwise a step costs
 * one load and a branch.
 *
 * Threads: the hook is set before the first thread and called from any.
 */
#ifndef CORE_STEP_H
#define CORE_STEP_H

typedef void step_fn(const char *name);

/* NULL: nobody is told. */
extern step_fn *step_hook;

static inline void step(const char *name)
{
	if (__builtin_expect(step_hook != 0, 0))
		step_hook(name);
}

#endif
