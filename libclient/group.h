/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Group: operations that this thread collects and posts as one batch
 *
 * Thread: each its own group (thread-local)      Owns: collected ops until they are posted
 * Locks: none
 */
#ifndef ROCECLIENT_GROUP_H
#define ROCECLIENT_GROUP_H

struct group;
struct op;
struct roce_client;
struct roce_comm;

/* The open group of this thread, or NULL. */
struct group *group_current(void);
/* May an operation of this communicator and kind go in? Return: 0 or a status. */
int group_admit(struct group *group, struct roce_comm *comm, unsigned int kind);
/* Takes @op over (copies the struct). Return: 0 or a status, @op is then still the caller's. */
int group_add(struct group *group, const struct op *op);
/* A call inside failed, its sentence is set: the end will return it. @group may be NULL. */
void group_failed(struct group *group, int status);
/* Drops this thread's group if it is of @client, which is being disconnected. */
void group_abandon(const struct roce_client *client);

#endif
