/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Data hello: encoding and checking
 *
 * Thread: any      Owns: nothing      Locks: none      See: PROTOCOL.md §7
 */
#include "job/datahello.h"

#include <openssl/crypto.h>
#include <string.h>

#define OFFSET_VERSION 8
#define OFFSET_INDEX 10
#define OFFSET_ZERO 12
#define OFFSET_HOST 16
#define OFFSET_TOKEN 32

/**
 * data_hello_encode() - write a data hello
 * @buf:    DATA_HELLO_SIZE bytes
 * @hello:  borrowed
 */
void data_hello_encode(uint8_t *buf, const struct data_hello *hello)
{
	memset(buf, 0, DATA_HELLO_SIZE);
	memcpy(buf, DATA_HELLO_MAGIC, 8);
	buf[OFFSET_VERSION] = DATA_HELLO_VERSION;
	buf[OFFSET_INDEX] = (uint8_t)hello->index;
	buf[OFFSET_INDEX + 1] = (uint8_t)(hello->index >> 8);
	memcpy(buf + OFFSET_HOST, hello->host_id, sizeof(hello->host_id));
	memcpy(buf + OFFSET_TOKEN, hello->token, sizeof(hello->token));
}

/* See datahello.h. */
int data_hello_decode(const uint8_t *buf, struct data_hello *ret)
{
	static const uint8_t zero[OFFSET_HOST - OFFSET_ZERO];

	if (memcmp(buf, DATA_HELLO_MAGIC, 8) != 0 || buf[OFFSET_VERSION] != DATA_HELLO_VERSION ||
	    buf[OFFSET_VERSION + 1] != 0 || memcmp(buf + OFFSET_ZERO, zero, sizeof(zero)) != 0) {
		return DATA_HELLO_E_INVALID;
	}
	ret->index = (uint16_t)(buf[OFFSET_INDEX] | buf[OFFSET_INDEX + 1] << 8);
	memcpy(ret->host_id, buf + OFFSET_HOST, sizeof(ret->host_id));
	memcpy(ret->token, buf + OFFSET_TOKEN, sizeof(ret->token));
	return 0;
}

/* See datahello.h. */
bool data_hello_token_equal(const uint8_t *a, const uint8_t *b)
{
	return CRYPTO_memcmp(a, b, DATA_HELLO_TOKEN) == 0;
}
