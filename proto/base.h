/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Base: cleanup attributes, hand-over helpers, error tracing
 *
 * The few macros that every layer uses. Nothing here allocates, locks or prints; the error trace
 * calls a hook that a program may install once, before it starts threads.
 *
 * Error convention (STYLE rule 14): a function returns 0 for success, a negative errno for what
 * nobody expected (forwarded unchanged, never matched), or a positive <OBJECT>_E_* code that its
 * direct caller handles.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#ifndef ROCECOMM_PROTO_BASE_H
#define ROCECOMM_PROTO_BASE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#ifndef MIN /* <uv.h> brings <sys/param.h>, which has the same two */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#endif
#define DIV_UP(a, b) (((a) + (b)-1) / (b))
#define ALIGN_UP(a, b) (DIV_UP(a, b) * (b))

#define container_of(ptr, type, member) \
	((type *)((char *)(ptr)-offsetof(type, member)) + 0 * sizeof((ptr) == &((type *)0)->member))

#define attr_printf(f, a) __attribute__((format(printf, f, a)))
#define attr_unused __attribute__((unused))
#define attr_cleanup(f) __attribute__((cleanup(f)))
#define attr_public __attribute__((visibility("default")))

static inline void base_free_p(void *p)
{
	free(*(void **)p);
}

static inline int base_close(int fd)
{
	if (fd >= 0) {
		int saved = errno;

		close(fd);
		errno = saved;
	}
	return -1;
}

static inline void base_close_p(int *fd)
{
	*fd = base_close(*fd);
}

/* Frees the pointer, closes the descriptor, when the variable goes out of scope. */
#define cleanup_free attr_cleanup(base_free_p)
#define cleanup_close attr_cleanup(base_close_p)

/* Hands a pointer over: yields its value and leaves NULL behind, so its cleanup does nothing. */
#define take_ptr(p)                               \
	({                                        \
		__typeof__(p) *take_p_ = &(p);    \
		__typeof__(p) take_v_ = *take_p_; \
		*take_p_ = NULL;                  \
		take_v_;                          \
	})

/* The same for a file descriptor: leaves -1 behind. */
static inline int take_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}

/* Where an unexpected (negative) error was first seen or passed on; see base.c. */
typedef void (*err_hook_fn)(const char *file, int line, const char *func, int r);
void err_set_hook(err_hook_fn hook);
int err_trace_slow(const char *file, int line, const char *func, int r);

#define err_origin(r) err_trace_slow(__FILE__, __LINE__, __func__, (r))
/* Passes r on; negative values leave a trace. */
#define err_trace(r)                                                                        \
	({                                                                                  \
		int err_r_ = (r);                                                           \
		err_r_ < 0 ? err_trace_slow(__FILE__, __LINE__, __func__, err_r_) : err_r_; \
	})
/* For callers that handle no positive code: turns one into -ENOTRECOVERABLE. */
#define err_fold(r)                                                                         \
	({                                                                                  \
		int err_f_ = (r);                                                           \
		err_f_ > 0 ? err_trace_slow(__FILE__, __LINE__, __func__, -ENOTRECOVERABLE) \
			   : err_trace(err_f_);                                             \
	})

#endif
