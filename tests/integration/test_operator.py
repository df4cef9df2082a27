# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What an operator meets: who is late, interfaces, sockets, keys, settings, exit codes."""
import json
import os
import re
import signal
import stat
import time

from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import Skip, test


@test
def late_rank_is_named_by_status(ctx):
    """Rank 3 sleeps before its call; both hosts' rocectl name it, its host and its pid."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "loop", "--iterations=4", "--late=3:3000", name="train")
        job.wait_ready()
        late = job.ranks[3]
        text = ""

        def named(daemon):
            nonlocal text
            text = daemon.ctl("status").stdout
            line = [l for l in text.split("\n") if "waiting" in l.lower()]
            return [l for l in line if re.search(r"\b3\b", l) and "hostB" in l
                    and str(late.pid) in l]

        lines = [wait_for(lambda: f"rocectl of {d.name} names rank 3, pid {late.pid}: {text}",
                          lambda d=d: named(d), 2.0) for d in daemons]
        wait_for("--check exits with 4 while a rank is late",
                 lambda: daemons[0].ctl("status", "--check", check=False).returncode == 4, 2)
        job.finish(20)
        wait_for("--check is content again",
                 lambda: daemons[0].ctl("status", "--check", check=False).returncode == 0, 3)
        return lines[0][0].strip()


@test
def decoy_interfaces_are_not_taken(ctx):
    """docker0 and virbr0 are up on both hosts, with equal addresses."""
    with ctx.lab(2) as lab:
        for host in lab.hosts:
            host.decoy("docker0", "172.17.0.1/16")
            host.decoy("virbr0", "192.168.122.1/24")
        daemons = lab.daemons()
        begin = time.monotonic()
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=5", "--count=262144")
        job.finish(5)
        took = time.monotonic() - begin
        expect(took < 5 * lab.slow, f"took {took:.1f} s")
        logs = daemons[0].log(200) + daemons[1].log(200)
        expect("10.47.0." in logs, f"the log does not name the address in use:\n{logs}")


@test
def only_decoys_is_refused(ctx):
    """Nothing but docker0 and lo: refused with each interface and its reason."""
    with ctx.lab(2) as lab:
        for host in lab.hosts:
            host.ip("link", "set", "eth0", "down")
            host.decoy("docker0", "172.17.0.1/16")
        daemons = lab.daemons()
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=2", "--join-ms=4000")
        codes = job.wait(45)
        expect(all(codes), f"exit codes {codes}")
        said = job.ranks[0].errors() + job.ranks[1].errors() + daemons[0].log(100) + \
            daemons[1].log(100)
        for word in ("docker0", "lo"):
            expect(re.search(rf"\b{word}\b", said), f"{word} is not named:\n{said}")
        return job.ranks[1].errors()


@test
def without_a_key_loopback_only(ctx):
    with ctx.lab(2) as lab:
        daemons = [Daemon(lab, h, {"peer": {"key_file": ""}}) for h in lab.hosts]
        listening = lab.hosts[0].run("sh", "-c", "cat /proc/net/tcp").stdout
        outside = [l for l in listening.split("\n") if re.match(r"\s*\d+: (?!0100007F)", l)
                   and " 0A " in l]
        expect(not outside, f"listens outside loopback: {outside}")
        Job(lab, daemons[:1], [2], "loop", "--iterations=3").finish(20)
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=2", "--join-ms=4000")
        codes = job.wait(45)
        expect(all(codes), f"two hosts without a key: exit codes {codes}")
        expect("key" in job.report(), f"does not speak of the key:\n{job.report()}")
        return job.ranks[1].errors()


@test
def different_keys_are_refused(ctx):
    with ctx.lab(2) as lab:
        other = os.path.join(lab.dir, "other.key")
        lab.hosts[0].run(lab.program("tools/rocectl/rocectl"), "key", "new", other)
        daemons = [Daemon(lab, lab.hosts[0]),
                   Daemon(lab, lab.hosts[1], {"peer": {"key_file": other}})]
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=2", "--join-ms=4000")
        codes = job.wait(45)
        expect(all(codes), f"exit codes {codes}")
        expect("key" in job.report(), f"does not speak of the key:\n{job.report()}")
        waiting = job.ranks[0].errors()
        expect(re.search(r"10\.47\.0\.2 was refused \d+ s ago: .*another cluster key", waiting),
               f"who waits at the root does not learn why nobody comes:\n{waiting}")
        return job.ranks[1].errors()


@test
def network_after_the_daemon(ctx):
    """A daemon that starts before the carrier needs no restart; SIGHUP finds more addresses."""
    with ctx.lab(2) as lab:
        lab.hosts[0].ip("link", "set", "eth0", "down")
        daemons = lab.daemons()
        expect("works alone" in daemons[0].log(), f"not said:\n{daemons[0].log()}")
        lab.hosts[0].ip("link", "set", "eth0", "up")
        wait_for("carrier", lambda: "state UP" in
                 lab.hosts[0].run("ip", "link", "show", "eth0").stdout, 5)
        Job(lab, daemons, [1, 1], "loop", "--iterations=3", "--join-ms=8000").finish(20)
        expect("have changed" in daemons[0].log(), f"not said:\n{daemons[0].log()}")
        lab.hosts[1].ip("addr", "add", "10.48.0.2/24", "dev", "eth0")
        daemons[1].kill(signal.SIGHUP)
        wait_for("SIGHUP finds the new address",
                 lambda: "10.48.0.2" in str(daemons[1].status()["interfaces"]), 3)
        expect("told 2" in daemons[1].log(), f"not said:\n{daemons[1].log()}")
        Job(lab, daemons, [1, 1], "loop", "--iterations=3").finish(20)


@test
def different_settings_are_named(ctx):
    with ctx.lab(2) as lab:
        daemons = [Daemon(lab, lab.hosts[0]),
                   Daemon(lab, lab.hosts[1], {"peer": {"chunk_kib": 128}})]
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=2", "--join-ms=4000")
        codes = job.wait(45)
        expect(all(codes), f"exit codes {codes}")
        said = job.report()
        for word in ("chunk_kib", "128", "256"):
            expect(word in said, f"'{word}' is not in:\n{said}")
        return job.ranks[1].errors()


@test
def one_port_through_a_firewall(ctx):
    """Only the configured port is open, both ways."""
    with ctx.lab(2) as lab:
        if lab.hosts[0].run("sh", "-c", "command -v nft", check=False).returncode != 0:
            raise Skip("no nft here")
        rules = os.path.join(lab.dir, "rules.nft")
        with open(rules, "w", encoding="ascii") as f:
            f.write("""table inet wall {
                chain input {
                    type filter hook input priority 0; policy drop;
                    iif lo accept
                    tcp dport 7777 accept
                    tcp sport 7777 accept
                }
            }
            """)
        for host in lab.hosts:
            done = host.run("nft", "-f", rules, check=False)
            if done.returncode != 0:
                raise Skip(f"nft does not work here: {done.stdout.strip()}")
        daemons = lab.daemons({"peer": {"port": 7777}})
        Job(lab, daemons, [2, 2], "loop", "--iterations=20", "--count=100000").finish(20)


@test
def stale_socket_and_double_start(ctx):
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        second = Daemon(lab, lab.hosts[0], start=False)
        second.start(wait=False)
        second.process.wait(5)
        expect(second.process.returncode != 0, "a second daemon took the socket")
        expect(daemon.answers(), "the first one suffered")
        os.kill(daemon.pid, signal.SIGSTOP)
        second.start(wait=False)
        second.process.wait(5)
        expect(second.process.returncode != 0, "a daemon took the socket of a stopped one")
        os.kill(daemon.pid, signal.SIGCONT)
        expect(daemon.answers(), "the stopped one does not answer after SIGCONT")
        daemon.kill()
        daemon.process.wait()
        expect(os.path.exists(daemon.socket), "no socket was left over")
        begin = time.monotonic()
        daemon.start()
        took = time.monotonic() - begin
        expect(took < 1.5 * lab.slow, f"took {took:.1f} s to serve again")
        return f"serves {took:.2f} s after kill -9"


@test
def strange_things_at_the_socket_path(ctx):
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0], start=False)
        with open(daemon.socket, "w", encoding="ascii") as f:
            f.write("precious")
        daemon.start(wait=False)
        daemon.process.wait(5)
        expect(daemon.process.returncode != 0, "started over a regular file")
        with open(daemon.socket, encoding="ascii") as f:
            expect(f.read() == "precious", "the file was touched")
        os.rename(daemon.socket, daemon.socket + ".file")
        os.symlink(daemon.socket + ".file", daemon.socket)
        daemon.start(wait=False)
        daemon.process.wait(5)
        expect(daemon.process.returncode != 0, "started over a symbolic link")
        expect(os.path.islink(daemon.socket), "the link was touched")


@test
def concurrent_starts(ctx):
    rounds = 5 if ctx.short else 30
    with ctx.lab(1) as lab:
        for _ in range(rounds):
            daemons = [Daemon(lab, lab.hosts[0], start=False) for _ in range(2)]
            for daemon in daemons:
                daemon.start(wait=False)
            wait_for("one of the two ends", lambda: not all(d.alive() for d in daemons),
                     5 * lab.slow)
            wait_for("the other answers", daemons[0].answers, 5 * lab.slow)
            alive = [d for d in daemons if d.alive()]
            expect(len(alive) == 1, f"{len(alive)} of two daemons live")
            alive[0].stop()
        return f"{rounds} times"


@test
def socket_mode_and_permission(ctx):
    with ctx.lab(1) as lab:
        for mask in ("0077", "0000"):
            daemon = Daemon(lab, lab.hosts[0], {"daemon": {"socket_mode": "0660"}},
                            name=f"mode{mask}", wrap=["sh", "-c", f'umask {mask}; exec "$@"', "-"],
                            start=False)
            daemon.process = lab.spawn(daemon.host.prefix() + daemon.command(),
                                       log=daemon.log_path)
            wait_for("an answer", daemon.answers, 10)
            mode = stat.S_IMODE(os.stat(daemon.socket).st_mode)
            expect(mode == 0o660, f"mode {mode:o} under umask {mask}")
            if mask == "0077":
                daemon.stop()
        os.chmod(lab.dir, 0o755)
        done = lab.hosts[0].run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                lab.program("tools/rocectl/rocectl"),
                                f"--socket={daemon.socket}", "version", check=False)
        if "Permission denied" in done.stdout and done.returncode in (126, 127):
            raise Skip("another user cannot run programs of this directory")
        for word in (daemon.socket, "0660", "root"):
            expect(word in done.stdout, f"'{word}' is not in: {done.stdout}")
        expect(done.returncode == 1, f"exit code {done.returncode}")
        return done.stdout.strip().split("\n")[-1]


@test
def rocectl_exit_codes_and_commands(ctx):
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])

        def code(*words):
            return daemon.ctl(*words, check=False).returncode

        for words in (["status"], ["status", "--json"], ["jobs"], ["jobs", "--json"], ["config"],
                      ["config", "--changed"], ["version"], ["status", "--check"], ["--help"]):
            expect(code(*words) == 0, f"{words}: {daemon.ctl(*words, check=False).stdout}")
        for words in ([], ["nonsense"], ["status", "extra"], ["status", "--nonsense"], ["key"],
                      ["key", "old"], ["version", "extra"], ["status", "--watch="],
                      ["links", "--during=0"], ["links", "--during=nan"],
                      ["check", "--seconds=61", "hostA"], ["check", "--seconds=2x", "hostA"]):
            expect(code(*words) == 2, f"{words} exits {code(*words)}, 2 is for usage")
        config = daemon.ctl("config").stdout
        expect(daemon.config in config, f"config does not name its file:\n{config}")
        key = os.path.join(lab.dir, "new.key")
        expect(code("key", "new", key) == 0, "key new failed")
        expect(stat.S_IMODE(os.stat(key).st_mode) == 0o600, "the key is readable for others")
        with open(key, encoding="ascii") as f:
            text = f.read()
        expect(re.fullmatch("[0-9a-f]{64}\n", text), "the key has another form")
        expect(code("key", "new", key) == 1, "key new overwrote a file")
        with open(key, encoding="ascii") as f:
            expect(f.read() == text, "key new changed a file")
        daemon.stop()
        expect(code("status") == 3, f"no daemon: exit {code('status')}")


@test
def names_of_clients_do_not_drive_the_terminal(ctx):
    """An operator looks at jobs of all users: what these call themselves is text."""
    name = "evil\x1b[2Jx\r\n\x7f\u009b1mä"
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        job = Job(lab, [daemon], [2], "count", "--count=2", "--iterations=2", name=name)
        job.wait_ready()
        for words in (["status"], ["jobs"]):
            text = daemon.ctl(*words).stdout
            expect("evil?[2Jx" in text and "1mä" in text, f"{words}: {text!r}")
            odd = [c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"]
            expect(not odd, f"{words} prints {odd}: {text!r}")
        for jobs in (daemon.status()["jobs"], json.loads(daemon.ctl("jobs", "--json").stdout)):
            expect([j["name"] for j in jobs] == [name], f"{jobs}")
        for rank in job.ranks:
            os.kill(rank.pid, signal.SIGUSR1)
        job.kill()


@test
def check_of_the_configuration(ctx):
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0], {"peer": {"port": 99999, "chunk_kib": "many"}},
                        start=False)
        done = lab.hosts[0].run(*daemon.command(), "--check", check=False)
        expect(done.returncode != 0, "--check is content with nonsense")
        for word in ("port", "99999", "65535", "chunk_kib", "many", daemon.config):
            expect(word in done.stdout, f"'{word}' is not in:\n{done.stdout}")
        daemon.write_config({})
        done = lab.hosts[0].run(*daemon.command(), "--check", check=False)
        expect(done.returncode == 0, f"--check of a good file:\n{done.stdout}")


@test
def reload_by_sighup(ctx):
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        job = Job(lab, [daemon], [2], "random", "--seconds=3")
        daemon.write_config({"daemon": {"log_level": "debug", "arrival_timeout_ms": 12345}})
        daemon.kill(signal.SIGHUP)
        wait_for("the new value shows", lambda: "12345" in daemon.ctl("config").stdout, 3)
        daemon.write_config({"daemon": {"log_level": "nonsense"}})
        daemon.kill(signal.SIGHUP)
        time.sleep(0.3)
        expect("12345" in daemon.ctl("config").stdout, "a bad file changed values")
        job.finish(30)


@test
def tiny_dev_shm(ctx):
    """1 MiB of /dev/shm; memory is memfds and does not care."""
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0], name="tiny", start=False)
        small = ["unshare", "-m", "--", "sh", "-c",
                 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "-"]
        daemon.process = lab.spawn(lab.hosts[0].prefix() + small + daemon.command(),
                                   log=daemon.log_path)
        wait_for("an answer", daemon.answers, 10)
        job = Job(lab, [daemon], [4], "loop", "--iterations=3", "--count=16777216",
                  wrap={r: small for r in range(4)})
        job.finish(60)


@test
def nothing_is_left_behind(ctx):
    """A stopped daemon leaves no socket, no shared memory, no process."""
    with ctx.lab(1) as lab:
        shm = set(os.listdir("/dev/shm"))
        daemon = Daemon(lab, lab.hosts[0])
        Job(lab, [daemon], [4], "matrix", "--short").finish(120)
        daemon.stop()
        expect(not os.path.exists(daemon.socket), "the socket stays behind")
        expect(set(os.listdir("/dev/shm")) <= shm, f"/dev/shm: {set(os.listdir('/dev/shm')) - shm}")
