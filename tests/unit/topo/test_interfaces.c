/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of topo/interfaces
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>

#include "topo/interfaces.h"

#define UP (IFF_UP | IFF_RUNNING)

static const struct value_list none;

static const char *judge(const char *name, unsigned int flags, const char *address,
			 const struct value_list *patterns, const struct value_list *listen)
{
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};

	if (inet_pton(AF_INET, address, &four.sin_addr) == 1) {
		return interfaces_judge(name, flags, (struct sockaddr *)&four, patterns, listen);
	}
	cr_assert_eq(inet_pton(AF_INET6, address, &six.sin6_addr), 1);
	return interfaces_judge(name, flags, (struct sockaddr *)&six, patterns, listen);
}

Test(interfaces, default_rule)
{
	cr_assert_null(judge("eth0", UP, "10.0.0.1", &none, &none));
	cr_assert_null(judge("veth-a", UP, "10.9.0.1", &none, &none));
	cr_assert_null(judge("br0", UP, "10.9.0.1", &none, &none));
	cr_assert_null(judge("br-lan", UP, "10.9.0.1", &none, &none));
	cr_assert_null(judge("eth0", UP, "fd00::1", &none, &none));
	cr_assert_str_eq(judge("lo", UP | IFF_LOOPBACK, "127.0.0.1", &none, &none), "loopback");
	cr_assert_str_eq(judge("lo", UP | IFF_LOOPBACK, "10.0.0.1", &none, &none), "loopback");
	cr_assert_str_eq(judge("eth0", UP, "127.0.1.1", &none, &none), "loopback");
	cr_assert_str_eq(judge("eth0", UP, "::1", &none, &none), "loopback");
	cr_assert_str_eq(judge("eth0", UP, "169.254.1.1", &none, &none), "link-local");
	cr_assert_str_eq(judge("eth0", UP, "fe80::1", &none, &none), "link-local");
	cr_assert_str_eq(judge("eth0", 0, "10.0.0.1", &none, &none), "interface is down");
	cr_assert_str_eq(judge("eth0", IFF_UP, "10.0.0.1", &none, &none),
			 "interface has no carrier");
	for (size_t i = 0; i < 4; i++) {
		const char *names[] = {"docker0", "virbr0", "br-0123456789ab", "cni0"};

		cr_assert_str_eq(judge(names[i], UP, "172.17.0.1", &none, &none),
				 "bridge of containers or virtual machines");
	}
}

Test(interfaces, patterns)
{
	struct value_list only = {.items = (char **)(const char *[]){"ens*", "docker0"},
				  .count = 2};
	struct value_list but = {.items = (char **)(const char *[]){"!ens1"}, .count = 1};

	cr_assert_null(judge("ens1", UP, "10.0.0.1", &only, &none));
	cr_assert_null(judge("docker0", UP, "172.17.0.1", &only, &none));
	cr_assert_str_eq(judge("eth0", UP, "10.0.0.1", &only, &none),
			 "not in config key interfaces");
	cr_assert_str_eq(judge("ens1", UP, "10.0.0.1", &but, &none),
			 "left out by config key interfaces");
	cr_assert_null(judge("ens2", UP, "10.0.0.1", &but, &none));
	cr_assert_str_eq(judge("docker0", UP, "172.17.0.1", &but, &none),
			 "bridge of containers or virtual machines");
}

Test(interfaces, listen)
{
	struct value_list listen = {.items = (char **)(const char *[]){"10.0.0.1", "fd00:0::1"},
				    .count = 2};
	struct value_list any = {.items = (char **)(const char *[]){"0.0.0.0"}, .count = 1};

	cr_assert_null(judge("eth0", UP, "10.0.0.1", &none, &listen));
	cr_assert_null(judge("eth0", UP, "fd00::1", &none, &listen));
	cr_assert_str_eq(judge("eth0", UP, "10.0.0.2", &none, &listen), "not in config key listen");
	cr_assert_null(judge("eth0", UP, "10.0.0.2", &none, &any));
}

Test(interfaces, this_host)
{
	struct interfaces *list;
	char text[4096], tiny[8];

	cr_assert_eq(interfaces_new(&none, &none, &list), 0);
	for (size_t i = 0; i < list->count; i++) {
		cr_assert_eq(list->items[i].reason == NULL, i < list->usable);
	}
	interfaces_describe(list, text, sizeof(text));
	cr_assert(strstr(text, "127.0.0.1 (loopback)") || strcmp(text, "none") == 0, "%s", text);
	interfaces_describe(list, tiny, sizeof(tiny));
	cr_assert_eq(interfaces_refresh(list, &none, &none), 0);
	cr_assert_gt(list->count, 0);
	cr_assert_null(interfaces_free(list));
	interfaces_free(NULL);
}
