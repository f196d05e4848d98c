/* Messages over a context's port. */
#include "context_port.h"
#include "library.h"

#include <string.h>

static int broken(int status, const char *doing, int rank, int64_t bytes)
{
    return fail(status, "the port returned %d (%s) %s rank %d, %lld bytes", status, strerror(-status), doing, rank,
                (long long)bytes);
}

int mg_attn_messages_send(messages *m, int32_t slot, int to, int tag, const void *data, int64_t bytes)
{
    const int status = m->status ? m->status
                       : bytes   ? m->port->send(m->port->context, &m->requests[slot], to, tag, data, bytes)
                                 : 0;
    return status ? broken(status, "sending to", to, bytes) : 0;
}

int mg_attn_messages_receive(messages *m, int32_t slot, int from, int tag, void *data, int64_t bytes)
{
    const int status = m->status ? m->status
                       : bytes   ? m->port->receive(m->port->context, &m->requests[slot], from, tag, data, bytes)
                                 : 0;
    return status ? broken(status, "receiving from", from, bytes) : 0;
}

static int waiting_failed(int status)
{
    return fail(status, "the port returned %d (%s) while waiting for messages", status, strerror(-status));
}

int mg_attn_messages_wait(messages *m, int32_t slot)
{
    int status = m->status;
    if (!status && m->requests[slot])
        status = m->port->wait(m->port->context, &m->requests[slot]);
    return status ? waiting_failed(status) : 0;
}

int mg_attn_messages_wait_all(messages *m)
{
    int status = 0;
    for (int32_t slot = 0; slot < m->count && !status; slot++)
        status = mg_attn_messages_wait(m, slot);
    return status;
}

void mg_attn_messages_progress(void *context)
{
    messages *m = context;
    for (int32_t tried = 0; tried < m->count && !m->status; tried++) {
        const int32_t slot = m->next;
        int done;
        m->next = m->next + 1 < m->count ? m->next + 1 : 0;
        if (m->requests[slot]) {
            m->status = m->port->test(m->port->context, &m->requests[slot], &done);
            return;
        }
    }
}

int mg_attn_port_swap(const mg_attn_port *port, int tag, int to, const void *sent, int64_t sent_bytes, int from,
                      void *received, int64_t received_bytes)
{
    void *requests[2] = {NULL, NULL};
    messages m = {.port = port, .requests = requests, .count = 2};
    int status = mg_attn_messages_receive(&m, 0, from, tag, received, received_bytes);
    if (!status)
        status = mg_attn_messages_send(&m, 1, to, tag, sent, sent_bytes);
    return status ? status : mg_attn_messages_wait_all(&m);
}

int mg_attn_port_other_failed(int rank, int status)
{
    return fail(status, "rank %d could not make its part: %s; its own line says why", rank, strerror(-status));
}

int mg_attn_port_agree(const mg_attn_port *port, int status)
{
    const int64_t mine = status;
    int other = 0;
    for (int s = 1; s < port->ranks; s++) {
        int64_t theirs = 0;
        const int failed = mg_attn_port_swap(port, TAG_LEARN, rank_after(port, s), &mine, sizeof mine,
                                             rank_before(port, s), &theirs, sizeof theirs);
        if (failed)
            return status ? status : failed;
        if (theirs && !other && !status)
            other = mg_attn_port_other_failed(rank_before(port, s), (int)theirs);
    }
    return status ? status : other;
}

int mg_attn_port_check(const char *caller, const mg_attn_port *port, const int64_t *first)
{
    if (!port || !first)
        return fail(-EINVAL, "%s: %s is NULL", caller, port ? "first" : "port");
    if (port->ranks < 1 || port->rank < 0 || port->rank >= port->ranks)
        return fail(-EINVAL, "%s: rank %d of %d ranks", caller, port->rank, port->ranks);
    if (port->ranks > 1 && (!port->send || !port->receive || !port->test || !port->wait))
        return fail(-EINVAL, "%s: the port of %d ranks lacks a callback", caller, port->ranks);
    for (int r = 0; r <= port->ranks; r++)
        if (first[r] < (r ? first[r - 1] : 0) || (!r && first[r]))
            return fail(-EINVAL, "%s: first[%d] is %lld; it ascends from 0", caller, r, (long long)first[r]);
    if (first[port->ranks] > INT32_MAX)
        return fail(-EOVERFLOW, "%s: %lld tokens; up to %d are possible", caller, (long long)first[port->ranks],
                    INT32_MAX);
    return 0;
}
