/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Data hello: the first 64 bytes of a data connection, which prove whose it is
 *
 *      0          8         10       12       16           32           64
 *      +----------+---------+--------+--------+------------+------------+
 *      | ROCEDATA | version | index  | zero   | host_id    | token      |
 *      +----------+---------+--------+--------+------------+------------+
 *      8 bytes    u16 LE    u16 LE   4 bytes  16 bytes     32 bytes
 *
 * Sent by the side that initiated the link, after it got the tokens inside TLS; answered by one
 * byte, DATA_HELLO_ACK. The token is the secret; host_id and index only say which one to compare.
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_DATAHELLO_H
#define ROCECOMM_JOB_DATAHELLO_H

#include <stdbool.h>
#include <stdint.h>

#define DATA_HELLO_SIZE 64
#define DATA_HELLO_MAGIC "ROCEDATA"
#define DATA_HELLO_VERSION 1
#define DATA_HELLO_TOKEN 32
#define DATA_HELLO_ACK 0x01

enum { DATA_HELLO_E_INVALID = 1 };

struct data_hello {
	uint16_t index;
	uint8_t host_id[16]; /* of the sender */
	uint8_t token[DATA_HELLO_TOKEN];
};

void data_hello_encode(uint8_t *buf, const struct data_hello *hello);
/* @buf: DATA_HELLO_SIZE bytes. Return: 0, DATA_HELLO_E_INVALID. */
int data_hello_decode(const uint8_t *buf, struct data_hello *ret);
/* Compares tokens in constant time. */
bool data_hello_token_equal(const uint8_t *a, const uint8_t *b);

#endif
