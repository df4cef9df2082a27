/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of peers: two daemons that mean well, over loopback
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peers_fixture.h"
#include "proto/base.h"
#include "util/log.h"

TestSuite(peers, .init = fixture_setup, .fini = fixture_teardown, .timeout = 60);

Test(peers, connect_v4)
{
	struct side a, b;

	link_up(&a, &b, v4, id_b);
	cr_assert(peer_is_up(a.peer) && peer_is_up(b.peer));
	cr_assert_str_eq(peer_name(a.peer), "beta");
	cr_assert_str_eq(peer_name(b.peer), "alpha");
	cr_assert_arr_eq(peer_host_id(b.peer), id_a, 16);
	cr_assert(strstr(peer_address(a.peer), "127.0.0.1:") &&
			  strstr(peer_address(a.peer), " via lo"),
		  "%s", peer_address(a.peer));
	check_streams(&a, &b);
	send_text(&a, "ping");
	send_text(&b, "pong");
	cr_assert(run_until(&b.messages, 1, 1000) && run_until(&a.messages, 1, 1000));
	cr_assert_str_eq(b.body, "ping");
	cr_assert_str_eq(a.body, "pong");
	cr_assert_eq(peers_find(a.peers, id_b), a.peer);
	run_for(1000); /* heartbeats keep an idle link */
	cr_assert_eq(a.downs + b.downs, 0);
	side_close(&a);
	cr_assert(run_until(&b.downs, 1, 1000));
	side_close(&b);
}

Test(peers, connect_v6)
{
	struct side a, b;
	int probe = socket(AF_INET6, SOCK_STREAM, 0);
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	if (probe < 0 || bind(probe, (struct sockaddr *)&any, sizeof(any)) < 0) {
		base_close(probe);
		return; /* a machine without IPv6 */
	}
	close(probe);
	link_up(&a, &b, v6, id_b);
	cr_assert(strstr(peer_address(a.peer), "[::1]:"), "%s", peer_address(a.peer));
	check_streams(&b, &a);
	side_close(&b);
	side_close(&a);
}

Test(peers, queue_while_connecting_and_share)
{
	const struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct peer *first;
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	first = a.peer;
	send_text(&a, "early");
	dial(&a, &b, id_b, v4, 1);
	cr_assert_eq(a.peer, first, "one link a host");
	dial(&a, &b, NULL, v4, 1);
	cr_assert_eq(a.peer, first, "found by its addresses");
	cr_assert(run_until(&b.messages, 1, 2000));
	cr_assert_str_eq(b.body, "early");
	cr_assert(run_until(&a.ups, 1, 2000));
	run_for(50);
	cr_assert_eq(a.ups, 1);
	cr_assert_eq(b.ups, 1);
	side_close(&a);
	side_close(&b);
}

/* A visit is a link of its own: beside the one that jobs share, and without data connections. */
Test(peers, visit)
{
	for (int round = 0; round < 4; round++) {
		struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
		struct peer_host host = {.addresses = v4, .naddresses = 1, .visit = true};
		struct side a, b;
		struct peer *visit;

		side_open(&a, &oa);
		side_open(&b, &ob);
		host.port = peers_port(b.peers);
		if (round & 1) {
			memcpy(host.host_id, id_b, sizeof(id_b));
		}
		cr_assert_eq(peers_connect(a.peers, &host, &visit), 0);
		cr_assert(peer_is_visit(visit));
		a.peer = visit;
		send_text(&a, "early");
		if (round & 2) {
			peer_release(visit); /* what was queued goes out first */
		}
		cr_assert(run_until(&b.messages, 1, 2000), "round %d: %s", round, a.reason);
		cr_assert_str_eq(b.body, "early");
		cr_assert_null(peers_find(b.peers, id_a));
		cr_assert_null(peers_find(a.peers, id_b));
		cr_assert_eq(a.nfds + b.nfds, 0);
		if (!(round & 2)) {
			cr_assert(peer_is_visit(b.peer));
			cr_assert_arr_eq(peer_host_id(visit), id_b, sizeof(id_b));
			cr_assert_arr_eq(peer_host_id(b.peer), id_a, sizeof(id_a));
			send_text(&b, "answer");
			cr_assert(run_until(&a.messages, 1, 2000));
			host = (struct peer_host){.addresses = v4, .naddresses = 1};
			host.port = peers_port(a.peers);
			a.peer = NULL;
			cr_assert_eq(peers_connect(b.peers, &host, &b.peer), 0);
			cr_assert_not(peer_is_visit(b.peer));
			host.port = peers_port(b.peers);
			host.visit = true;
			memcpy(host.host_id, id_b, sizeof(id_b));
			cr_assert(run_until(&b.ups, 2, 2000));
			cr_assert(run_until(&a.ups, 2, 2000));
			check_streams(&a, &b);
			cr_assert_eq(peers_connect(a.peers, &host, &a.peer), 0);
			cr_assert_not(peer_is_visit(a.peer), "a link that is up will do");
			peer_release(visit);
		}
		cr_assert(run_until(&a.downs, 1, 2000) && run_until(&b.downs, 1, 2000));
		run_for(20);
		cr_assert(a.downs == 1 && b.downs == 1);
		side_close(&a);
		side_close(&b);
	}
}

/* Both at once, by known or unknown id, either one first: one link on both sides, both learn it. */
Test(peers, both_at_once)
{
	for (int round = 0; round < 8; round++) {
		struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
		struct side a, b;

		side_open(&a, &oa);
		side_open(&b, &ob);
		if (round & 4) {
			dial(&b, &a, round & 2 ? NULL : id_a, v4, 1);
		}
		dial(&a, &b, round & 1 ? NULL : id_b, v4, 1);
		if (!(round & 4)) {
			dial(&b, &a, round & 2 ? NULL : id_a, v4, 1);
		}
		send_text(&a, "from a");
		send_text(&b, "from b");
		cr_assert(run_until(&a.messages, 1, 2000), "round %d: %s", round, a.reason);
		cr_assert(run_until(&b.messages, 1, 2000), "round %d: %s", round, b.reason);
		cr_assert_str_eq(a.body, "from b");
		cr_assert_str_eq(b.body, "from a");
		run_for(150);
		cr_assert(a.ups == 1 && b.ups == 1, "round %d: %d %d", round, a.ups, b.ups);
		cr_assert_eq(a.downs + b.downs, 0, "round %d: %s %s", round, a.reason, b.reason);
		check_streams(&a, &b);
		side_close(&a);
		side_close(&b);
	}
}

Test(peers, cluster_key)
{
	char one[] = "/tmp/rocecomm-one-XXXXXX", two[] = "/tmp/rocecomm-two-XXXXXX";
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	const struct peers_refusal *refusal;
	struct side a, b;

	write_key(one, '1');
	write_key(two, '2');
	oa.key_path = ob.key_path = one;
	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	side_close(&b);
	cr_assert(run_until(&a.downs, 1, 1000));
	a.ups = a.downs = 0;

	ob.key_path = two;
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	cr_assert(strstr(a.reason, "the other host has another cluster key"), "%s", a.reason);
	side_close(&b);
	a.downs = 0;

	/* The other way round: who refuses remembers whom, until that one is let in. */
	side_open(&b, &ob);
	cr_assert_null(peers_last_refusal(a.peers));
	dial(&b, &a, id_a, v4, 1);
	cr_assert(run_until(&b.downs, 1, 1000));
	refusal = peers_last_refusal(a.peers);
	cr_assert(refusal && strstr(refusal->cause, "another cluster key"));
	cr_assert_str_eq(refusal->address, "127.0.0.1");
	side_close(&b);
	ob.key_path = one;
	side_open(&b, &ob);
	dial(&b, &a, id_a, v4, 1);
	cr_assert(run_until(&a.ups, 1, 1000));
	cr_assert_null(peers_last_refusal(a.peers));
	side_close(&b);
	cr_assert(run_until(&a.downs, 1, 1000));
	a.ups = a.downs = 0;

	ob.key_path = NULL; /* the key for loopback is not ours either */
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	side_close(&b);
	side_close(&a);
	unlink(one);
	unlink(two);
}

Test(peers, no_key_no_network)
{
	static const char *const far[] = {"192.0.2.1", "2001:db8::1"}, *const any[] = {"0.0.0.0"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, far, 2);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_PERMISSION);
	cr_assert(strstr(a.reason, "no cluster key: run `rocectl key new` and copy "
				   "/etc/rocecomm/cluster.key to all hosts"),
		  "%s", a.reason);
	side_close(&a);
	side_close(&b);

	log_set_level(0);
	oa.listen = any;
	oa.nlisten = 1;
	cr_assert_eq(peers_new(&loop, &oa, &events, &a, &a.peers), -EACCES);
	oa.nlisten = 0;
	oa.key_path = "/nonexistent/key";
	cr_assert_eq(peers_new(&loop, &oa, &events, &a, &a.peers), -ENOENT);
}

Test(peers, address_fallback)
{
	static const char *const texts[] = {"127.0.0.9", "127.0.0.1"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob); /* listens on 127.0.0.1 only, so .9 refuses */
	dial(&a, &b, id_b, texts, 2);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	cr_assert(strstr(peer_address(a.peer), "127.0.0.1:"));
	side_close(&a);
	side_close(&b);
}

Test(peers, address_fallback_silent)
{
	static const char *const texts[] = {"127.0.0.8", "127.0.0.1"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	uint64_t start, took;
	struct side a, b;
	int fd;

	side_open(&a, &oa);
	side_open(&b, &ob);
	fd = silent_listener("127.0.0.8", peers_port(b.peers));
	start = uv_hrtime();
	dial(&a, &b, id_b, texts, 2);
	cr_assert(run_until(&a.ups, 1, 2000), "%s", a.reason);
	took = (uv_hrtime() - start) / 1000000;
	cr_assert(took >= 150 && took < 1000, "%lu ms", (unsigned long)took);
	side_close(&a);
	side_close(&b);
	close(fd);
}

Test(peers, unreachable_names_all)
{
	static const char *const texts[] = {"127.0.0.9", "127.0.0.8", "example.org"};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;
	int fd;

	oa.connect_timeout_ms = 500;
	side_open(&a, &oa);
	side_open(&b, &ob);
	fd = silent_listener("127.0.0.8", peers_port(b.peers));
	dial(&a, &b, id_b, texts, 3);
	cr_assert(run_until(&a.downs, 1, 2000));
	cr_assert_eq(a.status, STATUS_UNREACHABLE);
	cr_assert(
		strstr(a.reason, "the-other") && strstr(a.reason, "127.0.0.9:") &&
			strstr(a.reason, "refused (does rocecommd run there, and on this port?)") &&
			strstr(a.reason, "127.0.0.8:") &&
			strstr(a.reason, "no answer within 500 ms") &&
			strstr(a.reason, "example.org: not a numeric address"),
		"%s", a.reason);
	side_close(&a);
	side_close(&b);
	close(fd);
}

Test(peers, no_address)
{
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, NULL, 0);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "no address"), "%s", a.reason);
	side_close(&a);
	side_close(&b);
}

/* Our own address, under another host's id or none: recognised, and no link. */
Test(peers, ourselves)
{
	struct peers_options oa = options(0xa1, "alpha");
	struct peer_host host = {.addresses = v4, .naddresses = 1};
	struct side a;

	side_open(&a, &oa);
	dial(&a, &a, NULL, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "leads back to this host"), "%s", a.reason);
	a.downs = 0;
	dial(&a, &a, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "leads back to this host"), "%s", a.reason);
	host.port = peers_port(a.peers);
	cr_assert(peers_is_self(a.peers, &host));
	host.port++;
	cr_assert(!peers_is_self(a.peers, &host));
	memcpy(host.host_id, id_a, 16);
	cr_assert(peers_is_self(a.peers, &host));
	cr_assert_eq(peers_connect(a.peers, &host, &a.peer), -EINVAL);
	run_for(50);
	cr_assert_eq(a.ups, 0);
	side_close(&a);
}

Test(peers, another_daemon_answers)
{
	static const uint8_t id_c[16] = {0xc3};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_c, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "another daemon answers there (host beta"), "%s", a.reason);
	run_for(50);
	cr_assert_eq(b.ups + b.downs, 0);
	side_close(&a);
	side_close(&b);
}

Test(peers, settings)
{
	static const struct peers_setting sa[] = {{"chunk_bytes", "1048576"}, {"ring_min", "7"}};
	static const struct peers_setting sb[] = {{"chunk_bytes", "524288"}, {"ring_min", "7"}};
	struct peers_options oa = options(0xa1, "alpha"), ob = options(0xb2, "beta");
	struct side a, b;

	oa.settings = sa;
	ob.settings = sb;
	oa.nsettings = ob.nsettings = 2;
	side_open(&a, &oa);
	side_open(&b, &ob);
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert_eq(a.status, STATUS_MISMATCH);
	cr_assert(strstr(a.reason, "chunk_bytes") && strstr(a.reason, "1048576") &&
			  strstr(a.reason, "524288") && strstr(a.reason, "alpha") &&
			  strstr(a.reason, "beta") && !strstr(a.reason, "ring_min"),
		  "%s", a.reason);
	run_for(50);
	cr_assert(peers_last_refusal(b.peers) &&
		  strstr(peers_last_refusal(b.peers)->cause, "chunk_bytes"));
	side_close(&b);
	a.downs = 0;

	ob.settings = sa;
	ob.nsettings = 1; /* one that the other does not know */
	side_open(&b, &ob);
	dial(&a, &b, NULL, v4, 1);
	cr_assert(run_until(&a.downs, 1, 1000));
	cr_assert(strstr(a.reason, "ring_min"), "%s", a.reason);
	side_close(&b);
	a.downs = 0;

	ob.nsettings = 2;
	side_open(&b, &ob);
	dial(&a, &b, NULL, v4, 1);
	cr_assert(run_until(&a.ups, 1, 1000), "%s", a.reason);
	side_close(&b);
	side_close(&a);
}

Test(peers, given_up)
{
	struct side a, b;

	link_up(&a, &b, v4, id_b);
	peer_break(a.peer, "its data connections are lost");
	peer_break(a.peer, "again");
	cr_assert_eq(a.downs, 0, "an event before the call returned");
	cr_assert(run_until(&a.downs, 1, 500) && run_until(&b.downs, 1, 500));
	cr_assert(strstr(a.reason, "data connections are lost"), "%s", a.reason);
	cr_assert(strstr(b.reason, "data connections are lost"), "%s", b.reason);
	a.ups = a.downs = 0;
	dial(&a, &b, id_b, v4, 1);
	cr_assert(run_until(&a.ups, 1, 1000), "%s", a.reason);
	side_close(&a);
	side_close(&b);
}

Test(peers, goodbye)
{
	struct side a, b;

	link_up(&a, &b, v4, NULL);
	peers_stop(b.peers, "maintenance until noon");
	cr_assert_eq(b.downs, 1);
	cr_assert_eq(b.status, STATUS_SHUTDOWN);
	cr_assert(run_until(&a.downs, 1, 500));
	cr_assert_eq(a.status, STATUS_PEER_DIED);
	cr_assert(strstr(a.reason, "beta") && strstr(a.reason, "maintenance until noon"), "%s",
		  a.reason);
	cr_assert_null(peers_find(a.peers, id_b));
	cr_assert_eq(peers_connect(b.peers, &(struct peer_host){.port = 1}, &b.peer), -ESHUTDOWN);
	side_close(&a);
	side_close(&b);
}
