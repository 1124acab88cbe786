/* SPDX-License-Identifier: Apache-2.0 */
/* Prints every option with its default, one a line. */
#include <stdio.h>
#include <stdlib.h>

#include "core/buf.h"
#include "core/cleanup.h"
#include "core/config.h"

int main(void)
{
	cleanup(buf_release) struct buf out = BUF_INIT;
	struct config cfg;

	config_init(&cfg);
	if (config_print(&cfg, &out) < 0)
		return EXIT_FAILURE;
	return fwrite(out.data, 1, out.len, stdout) == out.len ? EXIT_SUCCESS :
								 EXIT_FAILURE;
}
