/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Peer wire: parsing and checking
 *
 * Thread: any      Owns: struct peer_hello's message      Locks: none      See: PROTOCOL.md §7
 */
#include "job/peer_wire.h"

#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

#define SETTING_TEXT 256 /* bytes of a key or value that are compared and shown */

/* See peer_wire.h. */
bool peer_id_is_zero(const uint8_t *host_id)
{
	static const uint8_t zero[PEER_HOST_ID];

	return memcmp(host_id, zero, sizeof(zero)) == 0;
}

/* See peer_wire.h. */
void peer_text_copy(char *dst, size_t size, const char *src)
{
	size_t n = 0;

	while (n + 1 < size && src[n] != '\0') {
		unsigned char c = (unsigned char)src[n];

		dst[n++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
	}
	/* A cut must not leave half a character behind. */
	if (src[n] != '\0' && ((unsigned char)src[n] & 0xc0) == 0x80) {
		while (n > 0 && ((unsigned char)dst[n - 1] & 0xc0) == 0x80) {
			n--;
		}
		n -= n > 0;
	}
	dst[n] = '\0';
}

/* See peer_wire.h. */
int peer_hello_parse(const uint8_t *body, size_t size, struct peer_hello *ret)
{
	Rocecomm__Peer__LinkHello *msg = rocecomm__peer__link_hello__unpack(NULL, size, body);

	if (!msg || !msg->host || msg->host->host_id.len != PEER_HOST_ID ||
	    peer_id_is_zero(msg->host->host_id.data) || msg->n_settings > PEER_MAX_SETTINGS) {
		goto invalid;
	}
	for (size_t i = 0; i < msg->n_settings; i++) {
		if (strlen(msg->settings[i]->key) >= SETTING_TEXT ||
		    strlen(msg->settings[i]->value) >= SETTING_TEXT) {
			goto invalid;
		}
	}
	*ret = (struct peer_hello){.msg = msg};
	memcpy(ret->host_id, msg->host->host_id.data, PEER_HOST_ID);
	peer_text_copy(ret->name, sizeof(ret->name), msg->host->name);
	peer_text_copy(ret->version, sizeof(ret->version), msg->version);
	if (ret->name[0] == '\0') {
		snprintf(ret->name, sizeof(ret->name), "(nameless)");
	}
	return 0;
invalid:
	if (msg) {
		rocecomm__peer__link_hello__free_unpacked(msg, NULL);
	}
	return PEER_WIRE_E_INVALID;
}

/* See peer_wire.h. */
void peer_hello_deinit(struct peer_hello *hello)
{
	if (hello->msg) {
		rocecomm__peer__link_hello__free_unpacked(hello->msg, NULL);
		hello->msg = NULL;
	}
}

static attr_printf(4, 5) void append(char *buf, size_t size, size_t *have, const char *fmt, ...)
{
	va_list args;
	int n;

	if (*have >= size) {
		return;
	}
	va_start(args, fmt);
	n = vsnprintf(buf + *have, size - *have, fmt, args);
	va_end(args);
	if (n > 0) {
		*have += (size_t)n;
	}
}

/* The other side's value of a key; NULL if it has none. */
static const char *hello_setting(const struct peer_hello *hello, const char *key)
{
	for (size_t i = 0; i < hello->msg->n_settings; i++) {
		if (strcmp(hello->msg->settings[i]->key, key) == 0) {
			return hello->msg->settings[i]->value;
		}
	}
	return NULL;
}

static bool has_setting(const struct peers_setting *ours, size_t n, const char *key)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(ours[i].key, key) == 0) {
			return true;
		}
	}
	return false;
}

/* See peer_wire.h. */
bool peer_hello_differs(const struct peer_hello *hello, const struct peers_setting *ours, size_t n,
			char *buf, size_t size)
{
	char key[SETTING_TEXT], value[SETTING_TEXT];
	bool differs = false;
	size_t have = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		const char *theirs = hello_setting(hello, ours[i].key);

		if (theirs && strcmp(theirs, ours[i].value) == 0) {
			continue;
		}
		peer_text_copy(value, sizeof(value), theirs ? theirs : "(not known)");
		append(buf, size, &have, "%s%s is %s there and %s here", differs ? ", " : "",
		       ours[i].key, value, ours[i].value);
		differs = true;
	}
	for (size_t i = 0; i < hello->msg->n_settings; i++) {
		if (has_setting(ours, n, hello->msg->settings[i]->key)) {
			continue;
		}
		peer_text_copy(key, sizeof(key), hello->msg->settings[i]->key);
		peer_text_copy(value, sizeof(value), hello->msg->settings[i]->value);
		append(buf, size, &have, "%s%s is %s there and (not known) here",
		       differs ? ", " : "", key, value);
		differs = true;
	}
	return differs;
}

/* See peer_wire.h. */
int peer_tokens_parse(const uint8_t *body, size_t size, struct peer_tokens *ret)
{
	Rocecomm__Peer__DataTokens *msg = rocecomm__peer__data_tokens__unpack(NULL, size, body);
	int r = PEER_WIRE_E_INVALID;

	if (!msg) {
		return r;
	}
	if (msg->n_tokens <= PEER_MAX_STREAMS) {
		ret->n = (unsigned int)msg->n_tokens;
		r = 0;
		for (size_t i = 0; i < msg->n_tokens; i++) {
			if (msg->tokens[i].len != DATA_HELLO_TOKEN) {
				r = PEER_WIRE_E_INVALID;
				break;
			}
			memcpy(ret->token[i], msg->tokens[i].data, DATA_HELLO_TOKEN);
			OPENSSL_cleanse(msg->tokens[i].data, DATA_HELLO_TOKEN);
		}
	}
	rocecomm__peer__data_tokens__free_unpacked(msg, NULL);
	return r;
}

/* See peer_wire.h. */
int peer_goodbye_parse(const uint8_t *body, size_t size, char *reason)
{
	Rocecomm__Peer__Goodbye *msg = rocecomm__peer__goodbye__unpack(NULL, size, body);

	if (!msg) {
		return PEER_WIRE_E_INVALID;
	}
	peer_text_copy(reason, PEER_REASON, msg->reason[0] ? msg->reason : "no reason given");
	rocecomm__peer__goodbye__free_unpacked(msg, NULL);
	return 0;
}
