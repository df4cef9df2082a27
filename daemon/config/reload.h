/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Reload: from the running configuration to a new one, as far as that goes without a restart
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_CONFIG_RELOAD_H
#define ROCECOMM_CONFIG_RELOAD_H

#include "config/config.h"

struct reload_result {
	unsigned int applied;	 /* keys that changed now */
	unsigned int waiting;	 /* keys that need a restart */
	char applied_text[1024]; /* their names, with old and new value */
	char waiting_text[1024];
};

/*
 * Moves the runtime-changeable values of @fresh into @running, where they differ, and names the
 * others. Both are resolved. @fresh holds the old values afterwards, to be freed.
 */
void reload_apply(struct config *running, struct config *fresh, struct reload_result *ret);

#endif
