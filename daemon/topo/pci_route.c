/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * PCI route: implementation
 *
 * The bridges that matter are those that only one of the two devices is below: from each device up
 * to the switch that they share, or to the root port where they share none.
 *
 * Thread: any      Owns: nothing      Locks: none
 */
#include "topo/pci_route.h"

#include <assert.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/base.h"

#define NAMED_MAX 6 /* bridges in a warning */
#define STEPS_MAX (PCI_BRIDGES_MAX / 2)
#define EXTENDED 0x100 /* where extended capabilities begin */
#define SPACE 0x1000
#define CAPABILITY_ACS 0x000d
#define ACS_CONTROL 6 /* from the capability's header */
#define REDIRECTS \
	(PCI_ACS_SOURCE_VALIDATION | PCI_ACS_REQUEST_REDIRECT | PCI_ACS_COMPLETION_REDIRECT)

const struct pci_tree pci_tree_system = {"/sys", "/proc", pread};

/* From below the root to the device. */
struct steps {
	uint32_t n;
	char root[PCI_ADDRESS];
	char at[STEPS_MAX][PCI_ADDRESS];
};

attr_printf(3, 4) static void add(char *text, size_t size, const char *fmt, ...)
{
	size_t n = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + n, size - n, fmt, ap);
	va_end(ap);
}

/* ---- where it is --------------------------------------------------------------------------- */

/* "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0" Return: false: no such device. */
static bool steps_read(const struct pci_tree *tree, const char *address, struct steps *ret)
{
	char path[256], text[512];
	const char *at;
	ssize_t n;

	*ret = (struct steps){0};
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s", tree->sys, address);
	n = address[0] ? readlink(path, text, sizeof(text) - 1) : -1;
	if (n <= 0) {
		return false;
	}
	text[n] = '\0';
	at = strstr(text, "/pci");
	for (bool root = true; at; root = false) {
		size_t length = strcspn(++at, "/");

		if (length >= PCI_ADDRESS || ret->n == STEPS_MAX) {
			return false;
		}
		memcpy(root ? ret->root : ret->at[ret->n], at, length);
		ret->n += !root;
		at = strchr(at, '/');
	}
	return ret->n > 0;
}

static uint32_t in_common(const struct steps *a, const struct steps *b)
{
	uint32_t n = 0;

	if (strcmp(a->root, b->root) != 0) {
		return 0;
	}
	while (n + 1 < a->n && n + 1 < b->n && strcmp(a->at[n], b->at[n]) == 0) {
		n++;
	}
	return n;
}

/* ---- access control ------------------------------------------------------------------------ */

/* 0: also when it cannot be read. */
static uint32_t word(const struct pci_tree *tree, int fd, uint32_t at)
{
	uint8_t b[4] = {0};

	if (tree->pread(fd, b, sizeof(b), at) != (ssize_t)sizeof(b)) {
		return 0;
	}
	return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static void walk_capabilities(const struct pci_tree *tree, int fd, struct pci_bridge *b)
{
	uint32_t at = EXTENDED;

	b->state = PCI_ACS_ABSENT;
	/* A list that leads in a circle ends here, too. */
	for (uint32_t left = (SPACE - EXTENDED) / 8; left > 0 && at >= EXTENDED; left--) {
		uint32_t header = word(tree, fd, at);

		if (header == 0 || header == UINT32_MAX) {
			return;
		}
		if ((header & 0xffff) == CAPABILITY_ACS) {
			b->control = (uint16_t)(word(tree, fd, at + 4) >> 16);
			b->state = PCI_ACS_READ;
			return;
		}
		at = header >> 20 & (SPACE - 4);
	}
}
static_assert(ACS_CONTROL == 4 + 2, "the upper half of the word behind the header");

static void bridge_read(const struct pci_tree *tree, struct pci_bridge *b)
{
	cleanup_close int fd = -1;
	char path[256];
	struct stat st;
	uint8_t one[4];

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/config", tree->sys, b->address);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		b->state = PCI_ACS_REFUSED;
	} else if (st.st_size <= EXTENDED) {
		b->state = PCI_ACS_NO_SPACE;
	} else if (tree->pread(fd, one, sizeof(one), EXTENDED) != (ssize_t)sizeof(one)) {
		b->state = PCI_ACS_REFUSED;
	} else {
		walk_capabilities(tree, fd, b);
	}
}

static void bridges_read(const struct pci_tree *tree, const struct steps *s, uint32_t from,
			 struct pci_route *ret)
{
	for (uint32_t i = from; i + 1 < s->n; i++) {
		struct pci_bridge *b = &ret->bridges[ret->nbridges++];

		memcpy(b->address, s->at[i], sizeof(b->address));
		bridge_read(tree, b);
	}
}

/* ---- IOMMU and machine --------------------------------------------------------------------- */

/* The first line of a file that @prefix begins; "" prefix: the first. Return: false: none. */
static bool read_line(const char *path, const char *prefix, char **line, size_t *size)
{
	FILE *f = fopen(path, "re");
	bool found = false;

	while (f && !found && getline(line, size, f) >= 0) {
		found = strncmp(*line, prefix, strlen(prefix)) == 0;
	}
	if (f) {
		fclose(f);
	}
	if (found) {
		(*line)[strcspn(*line, "\n")] = '\0';
	}
	return found;
}

/* What was given to the kernel about IOMMUs: a hint for people, the group's type decides. */
static void read_parameters(const struct pci_tree *tree, struct pci_route *ret)
{
	cleanup_free char *line = NULL;
	char path[256], *save, *p;
	size_t size = 0;

	snprintf(path, sizeof(path), "%s/cmdline", tree->proc);
	if (!read_line(path, "", &line, &size)) {
		return;
	}
	for (p = strtok_r(line, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
		if (strncmp(p, "iommu", 5) == 0 || strncmp(p, "intel_iommu=", 12) == 0 ||
		    strncmp(p, "amd_iommu=", 10) == 0) {
			add(ret->parameters, sizeof(ret->parameters), "%s%s",
			    ret->parameters[0] ? " " : "", p);
		}
	}
}

static void iommu_read(const struct pci_tree *tree, const char *nic, struct pci_route *ret)
{
	cleanup_free char *line = NULL;
	char path[256];
	struct stat st;
	size_t size = 0;

	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/iommu_group", tree->sys, nic);
	ret->iommu = PCI_IOMMU_UNKNOWN;
	if (stat(path, &st) < 0) {
		ret->iommu = errno == ENOENT ? PCI_IOMMU_NONE : PCI_IOMMU_UNKNOWN;
		return;
	}
	add(path, sizeof(path), "/type");
	if (!read_line(path, "", &line, &size)) {
		return;
	}
	snprintf(ret->iommu_type, sizeof(ret->iommu_type), "%.15s", line);
	if (strcmp(line, "identity") == 0) {
		ret->iommu = PCI_IOMMU_IDENTITY;
	} else if (strcmp(line, "DMA") == 0 || strcmp(line, "DMA-FQ") == 0) {
		ret->iommu = PCI_IOMMU_TRANSLATED;
	}
}

static bool in_vm(const struct pci_tree *tree)
{
	cleanup_free char *line = NULL;
	char path[256], *save, *p;
	size_t size = 0;

	snprintf(path, sizeof(path), "%s/cpuinfo", tree->proc);
	if (!read_line(path, "flags", &line, &size)) {
		return false;
	}
	for (p = strtok_r(line, " \t", &save); p; p = strtok_r(NULL, " \t", &save)) {
		if (strcmp(p, "hypervisor") == 0) {
			return true;
		}
	}
	return false;
}

static void lower_case(const char *from, char to[PCI_ADDRESS])
{
	snprintf(to, PCI_ADDRESS, "%.23s", from);
	for (char *c = to; *c; c++) {
		*c = (char)tolower((unsigned char)*c);
	}
}

/**
 * pci_route_read() - look at what lies between two devices
 * @tree: borrowed
 * @nic:  PCI address of the network device
 * @gpu:  PCI address of the other one
 * @ret:  what was seen; always set
 */
void pci_route_read(const struct pci_tree *tree, const char *nic, const char *gpu,
		    struct pci_route *ret)
{
	char a[PCI_ADDRESS], b[PCI_ADDRESS];
	struct steps from, to;
	uint32_t common;

	memset(ret, 0, sizeof(*ret));
	lower_case(nic, a);
	lower_case(gpu, b);
	if (!steps_read(tree, a, &from) || !steps_read(tree, b, &to)) {
		return;
	}
	ret->found = true;
	ret->vm = in_vm(tree);
	common = in_common(&from, &to);
	bridges_read(tree, &from, common, ret);
	bridges_read(tree, &to, common, ret);
	iommu_read(tree, a, ret);
	read_parameters(tree, ret);
}

/* ---- in words ------------------------------------------------------------------------------ */

/* See pci_route.h. */
void pci_acs_text(uint16_t control, char *text, size_t size)
{
	static const struct {
		uint16_t bit;
		const char *name;
	} bits[] = {{PCI_ACS_SOURCE_VALIDATION, "SrcValid"},
		    {PCI_ACS_REQUEST_REDIRECT, "ReqRedir"},
		    {PCI_ACS_COMPLETION_REDIRECT, "CmpltRedir"},
		    {PCI_ACS_UPSTREAM_FORWARDING, "UpstreamFwd"}};

	text[0] = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(bits); i++) {
		if (control & bits[i].bit) {
			add(text, size, "%s%s", text[0] ? " " : "", bits[i].name);
		}
	}
}

static void warn_bridges(const struct pci_route *route, char *text, size_t size)
{
	char mend[NAMED_MAX * (PCI_ADDRESS + 28)] = "", bits[64];
	uint32_t n = 0;

	for (uint32_t i = 0; i < route->nbridges; i++) {
		const struct pci_bridge *b = &route->bridges[i];

		if (b->state != PCI_ACS_READ || !(b->control & REDIRECTS)) {
			continue;
		}
		if (n++ >= NAMED_MAX) {
			continue;
		}
		pci_acs_text(b->control, bits, sizeof(bits));
		add(text, size, "%sbridge %s (%s)", text[0] ? ", " : "ACS is on at ", b->address,
		    bits);
		add(mend, sizeof(mend), "%ssetpci -s %s ECAP_ACS+6.w=0", mend[0] ? "; " : "",
		    b->address);
	}
	if (n > NAMED_MAX) {
		add(text, size, ", and %u bridges more", n - NAMED_MAX);
	}
	if (n > 0) {
		add(text, size,
		    ", so data takes the way through the root complex; until the next boot '%s' "
		    "ends that, for good the firmware's setting of ACS (not where devices are "
		    "given to virtual machines)",
		    mend);
	}
}

/* See pci_route.h. */
bool pci_route_warning(const struct pci_route *route, char *text, size_t size)
{
	text[0] = '\0';
	if (!route->found) {
		return false;
	}
	warn_bridges(route, text, size);
	if (route->iommu == PCI_IOMMU_TRANSLATED) {
		add(text, size,
		    "%sthe IOMMU translates what the device asks for (type %s%s%s); starting the "
		    "kernel with iommu=pt ends that",
		    text[0] ? "; " : "", route->iommu_type,
		    route->parameters[0] ? ", the kernel was started with " : "",
		    route->parameters);
	}
	return text[0] != '\0';
}

static void say_unread(const struct pci_route *route, enum pci_acs_state state, const char *why,
		       char *text, size_t size)
{
	const char *before = text[0] ? "; ACS of " : "ACS of ";
	bool any = false;

	for (uint32_t i = 0; i < route->nbridges; i++) {
		if (route->bridges[i].state == state) {
			add(text, size, "%s%s", any ? ", " : before, route->bridges[i].address);
			any = true;
		}
	}
	if (any) {
		add(text, size, " is not known: %s", why);
	}
}

/* See pci_route.h. */
bool pci_route_unseen(const struct pci_route *route, char *text, size_t size)
{
	text[0] = '\0';
	if (!route->found) {
		return false;
	}
	say_unread(route, PCI_ACS_REFUSED,
		   "reading it takes CAP_SYS_ADMIN; as root 'lspci -vvv' shows it as ACSCtl", text,
		   size);
	say_unread(route, PCI_ACS_NO_SPACE,
		   "the kernel does not reach their extended configuration space", text, size);
	if (route->iommu == PCI_IOMMU_UNKNOWN) {
		add(text, size,
		    "%sits IOMMU group is of type '%s', which says nothing of translation",
		    text[0] ? "; " : "", route->iommu_type);
	}
	if (route->vm) {
		add(text, size,
		    "%sthis is a virtual machine: ACS and IOMMU of the machine below cannot be "
		    "seen from here",
		    text[0] ? "; " : "");
	}
	return text[0] != '\0';
}
