/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Fuzz the parser of selection rules: any text is refused with a sentence, or yields valid rules
 *
 * Input: the text. It is given in memory of its exact size, so that a read behind it is found.
 *
 * Thread: one      Owns: the text      Locks: none
 */
#include <stdlib.h>
#include <string.h>

#include "coll/coll.h"
#include "tests/fuzz/fuzz.h"

#define ERR_SIZE 40

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct coll_tuning tuning = {0};
	char err[ERR_SIZE];
	char *text = malloc(size + 1);
	int r;

	if (!text) {
		return 0;
	}
	memcpy(text, data, size);
	text[size] = 0;
	memset(err, 'x', sizeof(err));
	r = coll_tuning_parse(&tuning, text, err, sizeof(err));
	fuzz_check(r == 0 || (tuning.nrules == 0 && err[0] && memchr(err, 0, sizeof(err))));
	fuzz_check(tuning.nrules <= COLL_MAX_RULES);
	for (uint32_t i = 0; i < tuning.nrules; i++) {
		const struct coll_rule *rule = &tuning.rules[i];

		fuzz_check(rule->kind < COLL_SEND && rule->algo < COLL_ALGO_COUNT_);
		fuzz_check(rule->algo == COLL_ALGO_AUTO ||
			   coll_supports(rule->kind, rule->algo, 2));
	}
	free(text);
	return 0;
}
