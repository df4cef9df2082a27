/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * TLS: OpenSSL over two memory BIOs
 *
 * The external key is given to OpenSSL as a session that both sides "resume": its callbacks for TLS
 * 1.3 keys work that way. A server that ignores the key would go on with a certificate; there are
 * no trusted ones (SSL_VERIFY_PEER with an empty store), and tls_read() checks once more that the
 * key was what authenticated.
 *
 * Thread: any, one user at a time      Owns: SSL, BIOs      Locks: none      See: PROTOCOL.md §7
 */
#include "job/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

#include "proto/base.h"

static const unsigned char tls_identity[] = "rocecomm";
static const unsigned char tls_cipher_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

#define TLS_IDENTITY_SIZE (sizeof(tls_identity) - 1)
#define TLS_CIPHER "TLS_AES_128_GCM_SHA256"

struct tls_context {
	SSL_CTX *ssl;
	uint8_t key[TLS_KEY_SIZE];
};

struct tls {
	SSL *ssl;
	BIO *in, *out; /* owned by ssl */
	bool ready;
	char error[128];
};

/* The key as a session to resume; NULL when OpenSSL is out of memory. */
static SSL_SESSION *key_session(SSL *ssl)
{
	struct tls_context *ctx = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, tls_cipher_id);
	SSL_SESSION *session = SSL_SESSION_new();

	if (!session || !cipher ||
	    !SSL_SESSION_set1_master_key(session, ctx->key, sizeof(ctx->key)) ||
	    !SSL_SESSION_set_cipher(session, cipher) ||
	    !SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION)) {
		SSL_SESSION_free(session);
		return NULL;
	}
	return session;
}

/* Client side: which key to offer. */
static int on_use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_size,
			  SSL_SESSION **ret)
{
	SSL_SESSION *session = key_session(ssl);

	if (!session) {
		return 0;
	}
	*id = tls_identity;
	*id_size = TLS_IDENTITY_SIZE;
	*ret = session;
	return 1;
}

/* Server side: the key of an identity; none for another name, which then fails without a key. */
static int on_find_session(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **ret)
{
	*ret = NULL;
	if (id_size != TLS_IDENTITY_SIZE || memcmp(id, tls_identity, id_size) != 0) {
		return 1;
	}
	*ret = key_session(ssl);
	return *ret != NULL;
}

/* See tls.h. */
int tls_context_new(const uint8_t *key, struct tls_context **ret)
{
	struct tls_context *ctx = calloc(1, sizeof(*ctx));

	if (!ctx) {
		return err_origin(-ENOMEM);
	}
	memcpy(ctx->key, key, sizeof(ctx->key));
	ctx->ssl = SSL_CTX_new(TLS_method());
	if (!ctx->ssl || !SSL_CTX_set_min_proto_version(ctx->ssl, TLS1_3_VERSION) ||
	    !SSL_CTX_set_max_proto_version(ctx->ssl, TLS1_3_VERSION) ||
	    !SSL_CTX_set_ciphersuites(ctx->ssl, TLS_CIPHER) ||
	    !SSL_CTX_set_num_tickets(ctx->ssl, 0) || !SSL_CTX_set_app_data(ctx->ssl, ctx)) {
		ERR_clear_error();
		tls_context_free(ctx);
		return err_origin(-EIO);
	}
	SSL_CTX_set_session_cache_mode(ctx->ssl, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_mode(ctx->ssl, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_psk_use_session_callback(ctx->ssl, on_use_session);
	SSL_CTX_set_psk_find_session_callback(ctx->ssl, on_find_session);
	*ret = ctx;
	return 0;
}

/* See tls.h. */
struct tls_context *tls_context_free(struct tls_context *ctx)
{
	if (ctx) {
		SSL_CTX_free(ctx->ssl);
		OPENSSL_cleanse(ctx->key, sizeof(ctx->key));
		free(ctx);
	}
	return NULL;
}

/* See tls.h. */
int tls_new(struct tls_context *ctx, bool server, struct tls **ret)
{
	struct tls *tls = calloc(1, sizeof(*tls));

	if (!tls) {
		return err_origin(-ENOMEM);
	}
	tls->ssl = SSL_new(ctx->ssl);
	tls->in = BIO_new(BIO_s_mem());
	tls->out = BIO_new(BIO_s_mem());
	if (!tls->ssl || !tls->in || !tls->out) {
		BIO_free(tls->in);
		BIO_free(tls->out);
		tls_free(tls);
		ERR_clear_error();
		return err_origin(-ENOMEM);
	}
	SSL_set_bio(tls->ssl, tls->in, tls->out);
	if (server) {
		SSL_set_accept_state(tls->ssl);
	} else {
		SSL_set_verify(tls->ssl, SSL_VERIFY_PEER, NULL);
		SSL_set_connect_state(tls->ssl);
	}
	*ret = tls;
	return 0;
}

/* See tls.h. */
struct tls *tls_free(struct tls *tls)
{
	if (tls) {
		SSL_free(tls->ssl);
		free(tls);
	}
	return NULL;
}

/* See tls.h. */
int tls_input(struct tls *tls, const void *data, size_t size)
{
	const char *p = data;

	while (size > 0) {
		int n = BIO_write(tls->in, p, (int)MIN(size, (size_t)1 << 20));

		if (n <= 0) {
			ERR_clear_error();
			return err_origin(-ENOMEM);
		}
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

/*
 * Does this error mean that the keys differ? A server sees that the proof of the key (binder) does
 * not verify; a client is told so by an alert, whose number depends on the server's library.
 */
static bool is_key_error(unsigned long e, bool ready)
{
	if (ready || ERR_GET_LIB(e) != ERR_LIB_SSL) {
		return false;
	}
	switch (ERR_GET_REASON(e)) {
	case SSL_R_BINDER_DOES_NOT_VERIFY:
	case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
		return true;
	default:
		return false;
	}
}

static int tls_fail(struct tls *tls)
{
	unsigned long e = ERR_peek_error();
	const char *text = e ? ERR_reason_error_string(e) : NULL;
	bool key = e && is_key_error(e, tls->ready);

	snprintf(tls->error, sizeof(tls->error), "%s", text ? text : "TLS failed");
	ERR_clear_error();
	return key ? TLS_E_KEY : TLS_E_FAILED;
}

static int tls_result(struct tls *tls, int r)
{
	switch (SSL_get_error(tls->ssl, r)) {
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return TLS_E_MORE;
	case SSL_ERROR_ZERO_RETURN:
		return TLS_E_CLOSED;
	default:
		return tls_fail(tls);
	}
}

/* See tls.h. */
int tls_read(struct tls *tls, void *buf, size_t size, size_t *ret_n)
{
	int r;

	ERR_clear_error();
	if (!tls->ready) {
		r = SSL_do_handshake(tls->ssl);
		if (r != 1) {
			return tls_result(tls, r);
		}
		if (!SSL_session_reused(tls->ssl)) {
			snprintf(tls->error, sizeof(tls->error), "not authenticated by the key");
			return TLS_E_FAILED;
		}
		tls->ready = true;
	}
	r = SSL_read_ex(tls->ssl, buf, size, ret_n);
	return r == 1 ? 0 : tls_result(tls, r);
}

/* See tls.h. */
int tls_write(struct tls *tls, const void *data, size_t size)
{
	size_t n;

	ERR_clear_error();
	if (size > 0 && SSL_write_ex(tls->ssl, data, size, &n) != 1) {
		tls_fail(tls);
		return TLS_E_FAILED;
	}
	return 0;
}

/* See tls.h. */
size_t tls_pending(const struct tls *tls)
{
	return BIO_ctrl_pending(tls->out);
}

/* See tls.h. */
size_t tls_output(struct tls *tls, void *buf, size_t size)
{
	int n = BIO_read(tls->out, buf, (int)MIN(size, (size_t)1 << 30));

	return n > 0 ? (size_t)n : 0;
}

/* See tls.h. */
bool tls_is_ready(const struct tls *tls)
{
	return tls->ready;
}

/* See tls.h. */
void tls_shutdown(struct tls *tls)
{
	ERR_clear_error();
	if (tls->ready) {
		SSL_shutdown(tls->ssl);
		ERR_clear_error();
	}
}

/* See tls.h. */
const char *tls_error(const struct tls *tls)
{
	return tls->error;
}
