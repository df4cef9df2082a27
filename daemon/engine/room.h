/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Room: how much memory of clients is registered with devices, and what is given back for more
 *
 * Before a client's memory is registered it takes room: of its tenant's quota, of the bounds of
 * each device, of the limit of locked memory. Where there is none, or a device says so, it waits in
 * the crowd, whose first is served: of what is in its way the memory that was not used for the
 * longest time is asked of the progress thread, which refuses what an operation uses; the
 * registrar gives it back, and the first is tried again. When nothing can be given back the memory
 * is `out`: the transport stages it. When it is used again it comes again (pin_again()), and only
 * memory that has rested for a while goes for that, so that more buffers in turn than there is room
 * for do not only push each other out.
 *
 * Thread: control      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_ENGINE_ROOM_H
#define ROCECOMM_ENGINE_ROOM_H

#include "engine/pin.h"

/*
 * Takes room for registering with these devices. Return: false: it waits in the crowd; room_look()
 * follows.
 */
bool room_take(struct pin *pin, uint32_t add);
/* Its job is back: what is not registered needs no room. */
void room_back(struct pin *pin);
/* The progress thread does not use it any more, to make room for the first of the crowd. */
void room_given(struct pin *pin);
/* It waits for nothing: without any registration it needs no room. */
void room_settled(struct pin *pin);
/* It ends, without any registration. */
void room_leave(struct pin *pin);
/* How long memory rests before it goes for such as comes again. */
uint64_t room_rest_ns(const struct pins *pins);
/* Serves the crowd. Steps and callbacks of other memory follow from inside. */
void room_look(struct engine *e);

#endif
