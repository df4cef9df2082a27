/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Tests of what lies between two PCI devices: ACS of bridges, IOMMU, virtual machines
 *
 * One switch (0000:01:00.0) with four ports: two network devices behind 02:00.0 and 02:01.0, a GPU
 * behind 02:02.0; a third network device at another root.
 *
 * Thread: the test's      Owns: what it makes      Locks: none
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/topo/pci_lab.h"

#define ROOT "pci0000:00/0000:00:01.0"
#define SWITCH ROOT "/0000:01:00.0"
#define FAR "pci0000:80/0000:80:01.0"
#define NIC0 "0000:03:00.0"
#define NIC1 "0000:04:00.0"
#define NIC2 "0000:81:00.0"
#define GPU "0000:0A:00.0" /* as the CUDA driver writes it */

struct said {
	bool warned, unseen;
	char warning[PCI_ROUTE_TEXT], unknown[PCI_ROUTE_TEXT];
};

/* @acs: of the ports above NIC0, NIC1, the GPU, and of the two root ports; -1: none. */
static void build(struct pci_lab *lab, const int acs[5], const char *iommu)
{
	pci_lab_init(lab);
	pci_lab_bridge(lab, ROOT, acs[3]);
	pci_lab_bridge(lab, SWITCH, -1);
	pci_lab_bridge(lab, SWITCH "/0000:02:00.0", acs[0]);
	pci_lab_bridge(lab, SWITCH "/0000:02:01.0", acs[1]);
	pci_lab_bridge(lab, SWITCH "/0000:02:02.0", acs[2]);
	pci_lab_bridge(lab, FAR, acs[4]);
	pci_lab_device(lab, SWITCH "/0000:02:00.0/" NIC0, iommu);
	pci_lab_device(lab, SWITCH "/0000:02:01.0/" NIC1, "identity");
	pci_lab_device(lab, SWITCH "/0000:02:02.0/0000:0a:00.0", iommu);
	pci_lab_device(lab, FAR "/" NIC2, NULL);
}

static void look(struct pci_lab *lab, const char *nic, struct said *ret)
{
	struct pci_route route;

	pci_route_read(&lab->tree, nic, GPU, &route);
	cr_assert(route.found);
	ret->warned = pci_route_warning(&route, ret->warning, sizeof(ret->warning));
	ret->unseen = pci_route_unseen(&route, ret->unknown, sizeof(ret->unknown));
	cr_assert_eq(ret->warned, ret->warning[0] != '\0');
	cr_assert_eq(ret->unseen, ret->unknown[0] != '\0');
}

static void has(const char *text, const char *part)
{
	cr_assert(strstr(text, part), "'%s' is not in '%s'", part, text);
}

static void has_not(const char *text, const char *part)
{
	cr_assert(!strstr(text, part), "'%s' is in '%s'", part, text);
}

static void silent(struct pci_lab *lab, const char *nic)
{
	struct said s;

	look(lab, nic, &s);
	cr_assert(!s.warned && !s.unseen, "%s / %s", s.warning, s.unknown);
}

Test(pci_route, clear)
{
	static const int acs[] = {0, 0, 0, 0x1d, -1};
	struct pci_lab lab;

	build(&lab, acs, NULL);
	silent(&lab, NIC0);
	silent(&lab, NIC1);
	pci_lab_deinit(&lab);
}

/* The pair behind the bridge is warned of, the other one is not. */
Test(pci_route, a_port_that_redirects)
{
	static const int acs[] = {0x1d, 0, 0, 0, 0};
	struct pci_lab lab;
	struct said s;

	build(&lab, acs, NULL);
	look(&lab, NIC0, &s);
	cr_assert(s.warned && !s.unseen);
	has(s.warning, "bridge 0000:02:00.0 (SrcValid ReqRedir CmpltRedir UpstreamFwd)");
	has(s.warning, "setpci -s 0000:02:00.0 ECAP_ACS+6.w=0");
	has_not(s.warning, "IOMMU");
	silent(&lab, NIC1);
	silent(&lab, NIC2);
	pci_lab_deinit(&lab);
}

/* Each bit by itself. Forwarding upstream alone redirects nothing. */
Test(pci_route, bits)
{
	static const struct {
		int acs;
		const char *text;
	} rows[] = {{0x01, "(SrcValid)"}, {0x04, "(ReqRedir)"}, {0x08, "(CmpltRedir)"},
		    {0x10, NULL},	  {0x42, NULL},		{0x05, "(SrcValid ReqRedir)"}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int acs[] = {rows[i].acs, 0, 0, 0, 0};
		struct pci_lab lab;
		struct said s;

		build(&lab, acs, NULL);
		look(&lab, NIC0, &s);
		cr_assert_eq(s.warned, rows[i].text != NULL, "%#x: %s", rows[i].acs, s.warning);
		if (rows[i].text) {
			has(s.warning, rows[i].text);
		}
		pci_lab_deinit(&lab);
	}
}

/* The GPU's own port concerns all; at different roots, the root ports do, too. */
Test(pci_route, both_sides_and_roots)
{
	static const int acs[] = {0, 0, 0x04, 0x04, 0x01};
	struct pci_lab lab;
	struct said s;

	build(&lab, acs, NULL);
	look(&lab, NIC1, &s);
	has(s.warning, "0000:02:02.0 (ReqRedir)");
	has_not(s.warning, "0000:00:01.0");
	look(&lab, NIC2, &s);
	has(s.warning, "bridge 0000:80:01.0 (SrcValid), bridge 0000:00:01.0 (ReqRedir), bridge "
		       "0000:02:02.0 (ReqRedir)");
	pci_lab_deinit(&lab);
}

Test(pci_route, iommu_of_each_kind)
{
	static const struct {
		const char *type;
		bool warned, unseen;
	} rows[] = {{NULL, false, false},
		    {"identity", false, false},
		    {"DMA", true, false},
		    {"DMA-FQ", true, false},
		    {"blocked", false, true}};
	static const int acs[] = {0, 0, 0, 0, 0};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pci_lab lab;
		struct said s;

		build(&lab, acs, rows[i].type);
		/* A hint only: it is the group that decides. */
		pci_lab_proc(&lab, "cmdline", "ro intel_iommu=on quiet iommu.strict=0\n");
		look(&lab, NIC0, &s);
		cr_assert_eq(s.warned, rows[i].warned, "%s: %s", rows[i].type, s.warning);
		cr_assert_eq(s.unseen, rows[i].unseen, "%s: %s", rows[i].type, s.unknown);
		if (s.warned) {
			has(s.warning, "the IOMMU translates");
			has(s.warning, rows[i].type);
			has(s.warning, "started with intel_iommu=on iommu.strict=0");
			has(s.warning, "iommu=pt");
		}
		silent(&lab, NIC1); /* passed through */
		pci_lab_deinit(&lab);
	}
}

Test(pci_route, without_the_right_to_read)
{
	static const int acs[] = {0x1d, 0, 0, 0, 0};
	struct pci_lab lab;
	struct said s;

	build(&lab, acs, "DMA");
	pci_lab_unprivileged(&lab);
	look(&lab, NIC0, &s);
	has_not(s.warning, "ACS");
	has(s.warning, "the IOMMU translates");
	has(s.unknown, "ACS of 0000:02:00.0, 0000:02:02.0 is not known: reading it takes "
		       "CAP_SYS_ADMIN");
	pci_lab_deinit(&lab);
}

Test(pci_route, no_extended_space)
{
	static const int acs[] = {0x1d, 0, 0, 0, 0};
	struct pci_lab lab;
	struct said s;

	build(&lab, acs, NULL);
	pci_lab_cut(&lab, "0000:02:00.0", 256);
	look(&lab, NIC0, &s);
	cr_assert(!s.warned && s.unseen);
	has(s.unknown, "ACS of 0000:02:00.0 is not known: the kernel does not reach");
	pci_lab_deinit(&lab);
}

/* Devices stand at the root, no bridge is seen; one that is seen is told. */
Test(pci_route, virtual_machine)
{
	static const int acs[] = {0x04, 0, 0, 0, 0};
	struct pci_lab lab;
	struct said s;
	struct pci_route route;

	build(&lab, acs, NULL);
	pci_lab_proc(&lab, "cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n");
	look(&lab, NIC0, &s);
	has(s.warning, "0000:02:00.0");
	has(s.unknown, "virtual machine: ACS and IOMMU of the machine below cannot be seen");
	pci_lab_device(&lab, "pci0000:00/0000:00:05.0", NULL);
	pci_lab_device(&lab, "pci0000:00/0000:00:06.0", NULL);
	pci_route_read(&lab.tree, "0000:00:05.0", "0000:00:06.0", &route);
	cr_assert(route.found && route.vm);
	cr_assert_eq(route.nbridges, 0);
	cr_assert(!pci_route_warning(&route, s.warning, sizeof(s.warning)));
	cr_assert(pci_route_unseen(&route, s.unknown, sizeof(s.unknown)));
	pci_lab_deinit(&lab);
}

/* More bridges than anybody has: the text is whole. */
Test(pci_route, bridges_without_end)
{
	char path[512] = "pci0000:00", nic[600];
	struct pci_lab lab;
	struct pci_route route;
	char text[PCI_ROUTE_TEXT];

	pci_lab_init(&lab);
	for (unsigned int i = 0; i < PCI_BRIDGES_MAX / 2 - 1; i++) {
		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/0000:%02x:00.0",
			 0x20 + i);
		pci_lab_bridge(&lab, path, 0x1d);
	}
	snprintf(nic, sizeof(nic), "%s/0000:81:00.0", path);
	pci_lab_device(&lab, nic, "DMA-FQ");
	pci_lab_device(&lab, "pci0000:80/0000:0a:00.0", NULL);
	pci_route_read(&lab.tree, NIC2, GPU, &route);
	cr_assert(route.found);
	cr_assert_eq(route.nbridges, PCI_BRIDGES_MAX / 2 - 1);
	cr_assert(pci_route_warning(&route, text, sizeof(text)));
	has(text, "setpci -s 0000:25:00.0 ECAP_ACS+6.w=0'");
	has(text, ", and 5 bridges more");
	has(text, "iommu=pt ends that");
	snprintf(path + strlen(path), sizeof(path) - strlen(path), "/0000:40:00.0");
	pci_lab_bridge(&lab, path, 0x1d);
	snprintf(nic, sizeof(nic), "%s/0000:82:00.0", path);
	pci_lab_device(&lab, nic, NULL);
	pci_route_read(&lab.tree, "0000:82:00.0", GPU, &route);
	cr_assert(!route.found, "deeper than is looked");
	pci_lab_deinit(&lab);
}

/* Spaces that lead in circles, and devices that are not there, end the look. */
Test(pci_route, broken, .timeout = 20)
{
	static const int acs[] = {-1, 0, 0, 0, 0};
	struct pci_lab lab;
	struct pci_route route;
	char text[256];

	build(&lab, acs, NULL);
	pci_lab_word(&lab, "0000:02:00.0", 0x100, 0x0001 | 0x200u << 20);
	pci_lab_word(&lab, "0000:02:00.0", 0x200, 0x0002 | 0x100u << 20);
	silent(&lab, NIC0);
	pci_lab_word(&lab, "0000:02:00.0", 0x100, UINT32_MAX);
	silent(&lab, NIC0);
	pci_lab_word(&lab, "0000:02:00.0", 0x100, 0x0001 | 0xffcu << 20);
	silent(&lab, NIC0);
	pci_route_read(&lab.tree, "", GPU, &route);
	cr_assert(!route.found);
	pci_route_read(&lab.tree, NIC0, "0000:99:00.0", &route);
	cr_assert(!route.found);
	cr_assert(!pci_route_warning(&route, text, sizeof(text)));
	cr_assert(!pci_route_unseen(&route, text, sizeof(text)));
	pci_lab_deinit(&lab);
}
