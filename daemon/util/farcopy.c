/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Far copy: whole cache lines by non-temporal stores where the CPU has them (all of x86-64)
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "util/farcopy.h"

#include <string.h>
#include <unistd.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LINE 64
#define SMALL 4096 /* not worth the fence */
#define THRESHOLD_DEFAULT (8u << 20)

uint64_t farcopy_threshold(void)
{
	long llc = sysconf(_SC_LEVEL3_CACHE_SIZE);

	return llc > 0 ? (uint64_t)llc / 4 : THRESHOLD_DEFAULT;
}

#ifdef __SSE2__
static void stream_lines(uint8_t *dst, const uint8_t *src, size_t lines)
{
	for (size_t i = 0; i < lines; i++, dst += LINE, src += LINE) {
		__m128i a = _mm_loadu_si128((const __m128i *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(src + 48));

		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	}
	/* Non-temporal stores are not ordered by a release store: this does it. */
	_mm_sfence();
}

void farcopy(void *dst, const void *src, size_t size)
{
	size_t head = -(uintptr_t)dst % LINE;
	uint8_t *to = (uint8_t *)dst + head;
	const uint8_t *from = (const uint8_t *)src + head;
	size_t body;

	if (size < SMALL) {
		memmove(dst, src, size);
		return;
	}
	body = (size - head) & ~(size_t)(LINE - 1);
	memmove(dst, src, head);
	stream_lines(to, from, body / LINE);
	memmove(to + body, from + body, size - head - body);
}
#else
void farcopy(void *dst, const void *src, size_t size)
{
	memmove(dst, src, size);
}
#endif
