/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The rocecomm authors */

/*
 * Messages of a flow: grants, NICs, uplinks
 *
 * Thread: any, one user at a time      Owns: everything within a run      Locks: none
 */
#include "tools/simulate/flow_impl.h"

#include "transport/wire.h"

/* ---- sends -------------------------------------------------------------------------------- */

static void park(struct flow *f, uint32_t at, uint32_t host, uint32_t task, uint64_t segment)
{
	uint32_t i = f->free_parked;

	if (i != FLOW_NONE) {
		f->free_parked = f->parked[i].next;
	} else {
		if (f->nparked == f->cap_parked) {
			uint32_t cap = f->cap_parked ? f->cap_parked * 2 : 256;
			struct flow_parked *grown = reallocarray(f->parked, cap, sizeof(*grown));

			if (!grown) {
				f->error = err_origin(-ENOMEM);
				return;
			}
			f->parked = grown;
			f->cap_parked = cap;
		}
		i = f->nparked++;
	}
	f->parked[i] = (struct flow_parked){host, task, segment, f->hosts[at].parked};
	f->hosts[at].parked = i;
}

/* A send whose data is there: it goes when the receiver has granted it. */
void flow_send_ready(struct flow *f, uint32_t host, uint32_t task, uint64_t segment)
{
	const struct flow_host *h = &f->hosts[host];
	uint32_t to = flow_actor(f, h->shape->steps[flow_step_of(h, task)].peer);
	uint64_t granted = f->granted[to * f->nseg + segment];

	if (f->eager) {
		flow_add_task(f, host, task, false);
	} else if (granted == 0) {
		park(f, to, host, task, segment);
	} else if (granted <= f->now) {
		flow_add_task(f, host, task, false);
	} else {
		flow_add_event(f, granted, EV_POST, host, task, segment, 0);
	}
}

void flow_grants_sent(struct flow *f, uint32_t host, uint64_t segment)
{
	uint64_t at = f->now + link_us_ps(f->m->alpha_us);
	uint32_t *link = &f->hosts[host].parked;

	/* The first grant is for all segments that begin at once. */
	for (uint64_t s = segment ? segment : f->hosts[host].next_segment - 1; s >= segment; s--) {
		f->granted[host * f->nseg + s] = at + (at == 0);
		if (s == 0) {
			break;
		}
	}
	while (*link != FLOW_NONE) {
		struct flow_parked *p = &f->parked[*link];
		uint32_t next = p->next;

		if (f->granted[host * f->nseg + p->segment] == 0) {
			link = &p->next;
			continue;
		}
		flow_add_event(f, at, EV_POST, p->host, p->task, p->segment, 0);
		p->next = f->free_parked;
		f->free_parked = *link;
		*link = next;
	}
}

static uint32_t free_rail(const uint64_t *rails, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (rails[i] < rails[best]) {
			best = i;
		}
	}
	return best;
}

/* The progress thread has handed a message to the NIC. */
void flow_transmit(struct flow *f, uint32_t host, uint32_t task, uint64_t segment)
{
	struct flow_host *h = &f->hosts[host];
	const struct shape_step *step = &h->shape->steps[flow_step_of(h, task)];
	uint64_t data = flow_piece(f, step, segment) * step->npieces;
	uint64_t wire = link_wire_ps(f->m, data + WIRE_SIZE);
	uint32_t rail = free_rail(&f->tx[host * f->rails], f->rails);
	uint64_t *tx = &f->tx[host * f->rails + rail];
	uint64_t begin = MAX(f->now, *tx);
	uint64_t alpha = link_us_ps(f->m->alpha_us);
	uint32_t rack = (uint32_t)f->m->rack;

	*tx = begin + wire;
	h->sent += data;
	h->messages_sent++;
	flow_add_event(f, *tx, EV_SENT, host, task, segment, rail);
	if (f->up && host / rack != step->peer / rack) {
		flow_add_event(f, begin, EV_UPLINK, host, task, segment, rail);
	} else {
		flow_add_event(f, begin + alpha, EV_WIRE, flow_actor(f, step->peer), step->target,
			       segment, rail);
	}
}

/*
 * Through the uplinks of two racks. The message occupies each in turn; its end comes when the
 * slowest of all has passed it on, which is told to the receiving rail as a late beginning.
 */
void flow_pass_uplink(struct flow *f, const struct event *e)
{
	struct flow_host *h = &f->hosts[e->host];
	const struct shape_step *step = &h->shape->steps[flow_step_of(h, e->step)];
	uint64_t data = flow_piece(f, step, e->segment) * step->npieces + WIRE_SIZE;
	uint64_t busy = link_uplink_ps(f->m, data);
	uint64_t wire = link_wire_ps(f->m, data);
	uint32_t rack = (uint32_t)f->m->rack;
	uint64_t *up = &f->up[e->host / rack];
	uint64_t *down = &f->down[step->peer / rack];
	uint64_t begin = MAX(f->now, *up);

	*up = begin + busy;
	begin = MAX(begin, *down);
	*down = begin + busy;
	begin += busy > wire ? busy - wire : 0;
	flow_add_event(f, begin + link_us_ps(f->m->alpha_us), EV_WIRE, step->peer, step->target,
		       e->segment, e->rail);
}

void flow_reserve_rx(struct flow *f, const struct event *e)
{
	const struct shape_step *step = &f->hosts[e->host].shape->steps[e->step];
	uint64_t data = flow_piece(f, step, e->segment) * step->npieces;
	uint64_t *rx = &f->rx[e->host * f->rails + e->rail];

	*rx = MAX(f->now, *rx) + link_wire_ps(f->m, data + WIRE_SIZE);
	flow_add_event(f, *rx, EV_LANDED, e->host, e->step, e->segment, e->rail);
}
