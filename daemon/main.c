/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * rocecommd: the command line
 *
 * Reads the arguments and the configuration, then lets daemon.c do the work. The only file with
 * arg_ variables.
 *
 * Exit status: 0 done; 1 cannot run; 2 usage; 78 (EX_CONFIG) the configuration is wrong.
 *
 * Thread: main      Owns: the arguments      Locks: none
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

#include "config/load.h"
#include "control/listen.h"
#include "daemon.h"
#include "util/log.h"

enum { EXIT_USAGE = 2 };

static bool arg_check;
static struct load_options arg_load;
static char arg_user_socket[LISTEN_PATH_SIZE];

static const char help_text[] =
	"rocecommd - the host's daemon of rocecomm: collectives of training processes across "
	"hosts\n"
	"\n"
	"Usage: rocecommd [OPTION]...\n"
	"\n"
	"  --config FILE        read FILE instead of " CONFIG_SYSTEM_FILE "\n"
	"  --check              check the configuration, say what is wrong with it, and exit\n"
	"  --user               serve this user only: socket under XDG_RUNTIME_DIR, exit when "
	"idle\n"
	"                       for " LOAD_USER_IDLE_EXIT " s, any free port\n"
	"  --socket PATH        listen on this Unix socket\n"
	"  --idle-exit SECONDS  exit after so long without a client; 0: never\n"
	"  --version            print the version and exit\n"
	"  --help               print this and exit\n"
	"\n"
	"Signals: TERM and INT end it within 2 s (a second one at once), HUP reloads the file.\n"
	"See rocecommd(8) and rocecommd.conf(5). `rocectl status` shows what it does.\n";

enum { OPT_CONFIG = 1, OPT_CHECK, OPT_USER, OPT_SOCKET, OPT_IDLE, OPT_VERSION, OPT_HELP };

static const struct option options[] = {
	{"config", required_argument, NULL, OPT_CONFIG},
	{"check", no_argument, NULL, OPT_CHECK},
	{"user", no_argument, NULL, OPT_USER},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"idle-exit", required_argument, NULL, OPT_IDLE},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

/* Return: an exit status, or -1: go on. */
static int parse_arguments(int argc, char **argv)
{
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case OPT_CONFIG:
			arg_load.file = optarg;
			break;
		case OPT_CHECK:
			arg_check = true;
			break;
		case OPT_USER:
			arg_load.user = true;
			break;
		case OPT_SOCKET:
			arg_load.socket = optarg;
			break;
		case OPT_IDLE:
			arg_load.idle_exit = optarg;
			break;
		case OPT_VERSION:
			puts("rocecommd " ROCECOMM_VERSION);
			return EXIT_SUCCESS;
		case OPT_HELP:
			fputs(help_text, stdout);
			return EXIT_SUCCESS;
		default: /* getopt has said why */
			fputs("rocecommd: --help lists the options\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "rocecommd: '%s' is no option; --help lists them\n", argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

static int load(struct config **ret)
{
	struct config_report report = {0};
	char err[512];
	int r;

	if (arg_load.user && !arg_load.socket) {
		if (listen_user_path(arg_user_socket, sizeof(arg_user_socket), err, sizeof(err)) !=
		    0) {
			log_error("%s", err);
			return EXIT_FAILURE;
		}
		arg_load.user_socket = arg_user_socket;
	}
	r = daemon_load(&arg_load, ret, &report);
	if (arg_check && report.text) {
		fputs(report.text, stderr);
	} else {
		daemon_log_report(&report);
	}
	config_report_deinit(&report);
	if (r < 0) {
		log_error("cannot load the configuration: %s", strerror(-r));
		return EXIT_FAILURE;
	}
	return r == 0 ? 0 : EX_CONFIG;
}

int main(int argc, char **argv)
{
	struct config *config;
	int status;

	status = parse_arguments(argc, argv);
	if (status >= 0) {
		return status;
	}
	log_open(LOG_LEVEL_INFO);
	status = load(&config);
	if (status != 0) {
		return status;
	}
	if (arg_check) {
		printf("%s: no errors\n", config->file ? config->file : "no file, all defaults");
		config_free(config);
		return EXIT_SUCCESS;
	}
	log_set_level(config->log_level);
	/* A peer or client that is gone is an error of write(), not the end of the daemon. */
	signal(SIGPIPE, SIG_IGN);
	return daemon_run(&arg_load, config);
}
