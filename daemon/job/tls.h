/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TLS: one end of a TLS 1.3 connection that is authenticated by a pre-shared key, without I/O
 *
 * Bytes from the network go in with tls_input(), bytes for it come out of tls_output(); a socket is
 * somebody else's business, so nothing here can block. Only TLS 1.3, only the external key (with a
 * Diffie-Hellman exchange, so that a stolen key does not open recorded traffic), no certificates,
 * no tickets, no early data. Both ends hold the same key: whoever completes the handshake has it.
 *
 * Thread: any, one user at a time      Owns: the OpenSSL objects      Locks: none
 * See: PROTOCOL.md §7
 */
#ifndef ROCECOMM_JOB_TLS_H
#define ROCECOMM_JOB_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TLS_KEY_SIZE 32
#define TLS_FIRST_BYTE 0x16 /* of every TLS connection: a handshake record */

enum {
	TLS_E_MORE = 1,	  /* needs bytes from the other side */
	TLS_E_CLOSED = 2, /* the other side ended the connection in order */
	TLS_E_KEY = 3,	  /* the other side has another key */
	TLS_E_FAILED = 4, /* not TLS 1.3 with a key, or damaged; see tls_error() */
};

struct tls_context;
struct tls;

/* @key: TLS_KEY_SIZE bytes, copied. Return: 0, -ENOMEM, -EIO (OpenSSL refuses what is needed). */
int tls_context_new(const uint8_t *key, struct tls_context **ret);
struct tls_context *tls_context_free(struct tls_context *ctx);

/* @ctx: borrowed, must outlive it. Return: 0, -ENOMEM. */
int tls_new(struct tls_context *ctx, bool server, struct tls **ret);
struct tls *tls_free(struct tls *tls);

/* Takes bytes from the network. Return: 0, -ENOMEM. */
int tls_input(struct tls *tls, const void *data, size_t size);
/*
 * Goes on with the handshake, then decrypts. Call until it returns TLS_E_MORE; tls_output() may
 * have something after every call. Return: 0 with *ret_n > 0 bytes in @buf, or TLS_E_*.
 */
int tls_read(struct tls *tls, void *buf, size_t size, size_t *ret_n);
/* Encrypts all of @data; only when tls_is_ready(). Return: 0, TLS_E_FAILED. */
int tls_write(struct tls *tls, const void *data, size_t size);
/* Bytes that wait for tls_output(). */
size_t tls_pending(const struct tls *tls);
/* Takes up to @size bytes for the network. Return: how many. */
size_t tls_output(struct tls *tls, void *buf, size_t size);
/* The handshake is done, and the other side has shown that it has the key. */
bool tls_is_ready(const struct tls *tls);
/* Queues the orderly end. */
void tls_shutdown(struct tls *tls);
/* OpenSSL's words for the last TLS_E_FAILED or TLS_E_KEY. */
const char *tls_error(const struct tls *tls);

#endif
