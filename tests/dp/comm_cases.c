#include "comm_cases.h"

int comm_complain(mg_comm *comm, const char *file, int line, const char *what)
{
    char text[400];
    snprintf(text, sizeof text, "%s:%d: %s (%s); last error: %s", file, line, what, mg_comm_backend(comm),
             mg_dp_last_error());
    mg_comm_abort(comm, -EDOM, text);
    return -EDOM;
}

typedef struct kinds {
    mg_comm_type type;
    mg_comm_operation operation;
} kinds;

static const kinds all_kinds[] = {
    {MG_COMM_FP32, MG_COMM_SUM},  {MG_COMM_FP32, MG_COMM_MAX},  {MG_COMM_FP32, MG_COMM_MIN},
    {MG_COMM_FP64, MG_COMM_SUM},  {MG_COMM_FP64, MG_COMM_MAX},  {MG_COMM_FP64, MG_COMM_MIN},
    {MG_COMM_INT32, MG_COMM_SUM}, {MG_COMM_INT32, MG_COMM_MAX}, {MG_COMM_INT32, MG_COMM_MIN},
    {MG_COMM_INT64, MG_COMM_SUM}, {MG_COMM_INT64, MG_COMM_MAX}, {MG_COMM_INT64, MG_COMM_MIN},
    {MG_COMM_BYTE, MG_COMM_MAX},  {MG_COMM_BYTE, MG_COMM_MIN},
};
enum { KINDS = sizeof all_kinds / sizeof all_kinds[0] };

static int64_t size_of(mg_comm_type type)
{
    return type == MG_COMM_BYTE ? 1 : type == MG_COMM_FP64 || type == MG_COMM_INT64 ? 8 : 4;
}

/* Element i of a rank's values. Magnitudes vary, so that a sum in another order has other bits. */
static void put(char *at, mg_comm_type type, int rank, int64_t i)
{
    uint64_t bits = test_random_bits((uint64_t)rank + 77, (uint64_t)i);
    double value = (double)test_random((uint64_t)rank + 5, (uint64_t)i) * pow(2, (double)(bits % 21));
    float narrow = (float)value;
    int32_t half = (int32_t)bits;
    if (type == MG_COMM_FP32)
        memcpy(at, &narrow, 4);
    else if (type == MG_COMM_FP64)
        memcpy(at, &value, 8);
    else if (type == MG_COMM_INT32)
        memcpy(at, &half, 4);
    else if (type == MG_COMM_INT64)
        memcpy(at, &bits, 8);
    else
        *at = (char)bits;
}

#define COMBINE(a, b, o) ((o) == MG_COMM_SUM ? (a) + (b) : ((o) == MG_COMM_MAX) == ((a) > (b)) ? (a) : (b))

/* a = a op b, one element: the plain loop's step. */
static void combine(char *a, const char *b, mg_comm_type type, mg_comm_operation o)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint32_t u;
        uint64_t ul;
        uint8_t c;
    } x = {.ul = 0}, y = {.ul = 0};
    size_t size = (size_t)size_of(type);
    memcpy(&x, a, size);
    memcpy(&y, b, size);
    if (type == MG_COMM_FP32)
        x.f = COMBINE(x.f, y.f, o);
    else if (type == MG_COMM_FP64)
        x.d = COMBINE(x.d, y.d, o);
    else if (type == MG_COMM_INT32 && o == MG_COMM_SUM)
        x.u += y.u;
    else if (type == MG_COMM_INT32)
        x.i = COMBINE(x.i, y.i, o);
    else if (type == MG_COMM_INT64 && o == MG_COMM_SUM)
        x.ul += y.ul;
    else if (type == MG_COMM_INT64)
        x.l = COMBINE(x.l, y.l, o);
    else
        x.c = COMBINE(x.c, y.c, o);
    memcpy(a, &x, size);
}

static void reduced(char *at, mg_comm_type type, mg_comm_operation operation, int ranks, int64_t i)
{
    char next[8];
    put(at, type, 0, i);
    for (int r = 1; r < ranks; r++) {
        put(next, type, r, i);
        combine(at, next, type, operation);
    }
}

static char *values(int64_t count, kinds k, int rank)
{
    char *data = malloc((size_t)(count * size_of(k.type) + 8));
    for (int64_t i = 0; i < count; i++)
        put(data + i * size_of(k.type), k.type, rank, i);
    return data;
}

/* Elements [begin, end) of data are the reduced ones. */
static int is_reduced(const char *data, kinds k, int ranks, int64_t begin, int64_t end)
{
    char expected[8];
    int64_t size = size_of(k.type);
    for (int64_t i = begin; i < end; i++) {
        reduced(expected, k.type, k.operation, ranks, i);
        if (memcmp(data + i * size, expected, (size_t)size))
            return 0;
    }
    return 1;
}

static int all_reduce(mg_comm *comm, void *context)
{
    (void)context;
    static const int64_t counts[] = {0, 1, 2, 7, 100, 1031};
    int ranks = mg_comm_size(comm);
    for (int k = 0; k < KINDS; k++)
        for (size_t c = k ? 4 : 0; c < (k ? 5 : sizeof counts / sizeof counts[0]); c++) {
            char *data = values(counts[c], all_kinds[k], mg_comm_rank(comm));
            int status =
                mg_comm_all_reduce(comm, counts[c] ? data : NULL, counts[c], all_kinds[k].type, all_kinds[k].operation);
            int same = !status && is_reduced(data, all_kinds[k], ranks, 0, counts[c]);
            free(data);
            CHECK(!status && same);
        }
    return 0;
}

/* Longer than the workspace of a reduction: several rounds, the last one not full. */
static int long_all_reduce(mg_comm *comm, void *context)
{
    (void)context;
    kinds k = {MG_COMM_FP32, MG_COMM_SUM};
    int64_t count = 300017;
    char *data = values(count, k, mg_comm_rank(comm));
    int status = mg_comm_all_reduce(comm, data, count, k.type, k.operation);
    int same = 1;
    for (int64_t i = 0; i < count && same; i += i % 1024 == 1 ? 997 : 1)
        same = is_reduced(data, k, mg_comm_size(comm), i, i + 1);
    free(data);
    CHECK(!status && same);
    return 0;
}

/* Uneven slices, some of them empty; by shape, all empty or all in one. */
static int64_t make_slices(int64_t *counts, int ranks, int shape)
{
    int64_t sum = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = shape == 0   ? (r * 37 + 11) % 5 * 100 + r
                    : shape == 1 ? (r % 2 ? 0 : 300 - r)
                    : shape == 2 ? (r == ranks - 1 ? 1000 : 0)
                    : shape == 3 ? 0
                                 : 1;
        sum += counts[r];
    }
    return sum;
}
enum { SHAPES = 5, MOST = 16 };

static int reduce_scatter(mg_comm *comm, void *context)
{
    (void)context;
    int64_t counts[MOST];
    int ranks = mg_comm_size(comm), rank = mg_comm_rank(comm);
    for (int k = 0; k < KINDS; k++)
        for (int shape = 0; shape < (k ? 1 : SHAPES); shape++) {
            int64_t sum = make_slices(counts, ranks, shape), begin = 0;
            for (int r = 0; r < rank; r++)
                begin += counts[r];
            char *data = values(sum, all_kinds[k], rank);
            int status = mg_comm_reduce_scatter(comm, data, counts, all_kinds[k].type, all_kinds[k].operation);
            int same = !status && is_reduced(data, all_kinds[k], ranks, begin, begin + counts[rank]);
            free(data);
            CHECK(!status && same);
        }
    return 0;
}

static int all_gather(mg_comm *comm, void *context)
{
    (void)context;
    int64_t counts[MOST];
    int ranks = mg_comm_size(comm), rank = mg_comm_rank(comm);
    kinds k = {MG_COMM_INT64, MG_COMM_SUM};
    for (int shape = 0; shape < SHAPES; shape++) {
        int64_t sum = make_slices(counts, ranks, shape), at = 0;
        int64_t *data = calloc((size_t)sum + 1, 8);
        for (int r = 0; r < ranks; at += counts[r++])
            for (int64_t i = 0; i < counts[r] && r == rank; i++)
                put((char *)&data[at + i], k.type, r, at + i);
        int status = mg_comm_all_gather(comm, data, counts, MG_COMM_INT64), same = 1;
        at = 0;
        for (int r = 0; r < ranks; at += counts[r++])
            for (int64_t i = 0; i < counts[r]; i++) {
                int64_t expected;
                put((char *)&expected, k.type, r, at + i);
                same &= data[at + i] == expected;
            }
        free(data);
        CHECK(!status && same);
    }
    return 0;
}

/* Rank a sends b this many; some are 0. */
static int64_t between(int a, int b, int shape)
{
    return shape == 0 ? (a * 5 + b * 3) % 4 * 90 : shape == 1 ? a == b : 0;
}

static int all_to_all(mg_comm *comm, void *context)
{
    (void)context;
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm);
    for (int shape = 0; shape < 3; shape++) {
        int64_t out[MOST], in[MOST], n = 0, m = 0, at = 0;
        for (int r = 0; r < ranks; r++) {
            n += out[r] = between(me, r, shape);
            m += in[r] = between(r, me, shape);
        }
        int32_t *sent = calloc((size_t)n + 1, 4), *got = calloc((size_t)m + 1, 4);
        for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < out[r]; i++)
                sent[at++] = (int32_t)(me * 1000000 + r * 10000 + i);
        int status = mg_comm_all_to_all(comm, sent, out, got, in, MG_COMM_INT32), same = 1;
        at = 0;
        for (int r = 0; r < ranks; r++)
            for (int64_t i = 0; i < in[r]; i++)
                same &= got[at++] == (int32_t)(r * 1000000 + me * 10000 + i);
        free(sent);
        free(got);
        CHECK(!status && same);
    }
    return 0;
}

static int broadcast(mg_comm *comm, void *context)
{
    (void)context;
    double data[500];
    for (int root = 0; root < mg_comm_size(comm); root++)
        for (int64_t count = 0; count <= 500; count += 250) {
            for (int i = 0; i < 500; i++)
                data[i] = mg_comm_rank(comm) == root ? root * 1000 + i : -1;
            CHECK(!mg_comm_broadcast(comm, data, count, MG_COMM_FP64, root));
            for (int64_t i = 0; i < count; i++)
                CHECK(data[i] == (double)(root * 1000 + i));
        }
    return 0;
}

static int barrier(mg_comm *comm, void *context)
{
    (void)context;
    for (int i = 0; i < 20; i++)
        CHECK(!mg_comm_barrier(comm));
    return 0;
}

/* Sizes around the chunk, to the next rank and to itself. */
static int sizes(mg_comm *comm, void *context)
{
    int64_t chunk = *(int64_t *)context < 1 << 20 ? *(int64_t *)context : 100000;
    int64_t all[] = {0, 1, 15, 16, 17, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 3 * chunk + 5};
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm);
    for (int hop = 0; hop < 2; hop++)
        for (size_t s = 0; s < sizeof all / sizeof all[0]; s++) {
            char *out = malloc((size_t)all[s] + 1), *in = calloc((size_t)all[s] + 1, 1);
            int to = (me + hop) % ranks, from = (me - hop + ranks) % ranks, same = 1;
            for (int64_t i = 0; i < all[s]; i++)
                out[i] = (char)(me * 31 + i * 7);
            mg_comm_request *requests[2];
            int status = mg_comm_send(comm, &requests[0], to, 1048575, out, all[s]);
            if (!status)
                status = mg_comm_receive(comm, &requests[1], from, 1048575, in, all[s]);
            if (!status)
                status = mg_comm_wait_all(comm, requests, 2);
            for (int64_t i = 0; i < all[s]; i++)
                same &= in[i] == (char)(from * 31 + i * 7);
            free(out);
            free(in);
            CHECK(!status && same);
        }
    return 0;
}

/* --- any order of sends and receives that name the same messages --- */

enum { TAGS = 3, EACH = 6, LONGEST = 3000 };

/* Message k of those from a to b with a tag. */
static int64_t length_of(int a, int b, int tag, int k)
{
    return (int64_t)(test_random_bits((uint64_t)(a * 64 + b), (uint64_t)(tag * 100 + k)) % 4
                         ? (a + b + k) % 40
                         : (k + 1) * LONGEST / EACH);
}

static char byte_of(int a, int b, int tag, int k, int64_t i) { return (char)(a * 3 + b * 5 + tag * 7 + k * 11 + i); }

typedef struct mail {
    mg_comm_request *request;
    char *data;
    int peer, tag, k, sending, posted;
} mail;

static void shuffle(int *order, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(test_random_bits(seed, (uint64_t)i) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static int post_mail(mg_comm *comm, mail *m, int k)
{
    int me = mg_comm_rank(comm), a = m->sending ? me : m->peer, b = m->sending ? m->peer : me;
    m->k = k;
    int64_t bytes = length_of(a, b, m->tag, k);
    for (int64_t i = 0; i < bytes; i++)
        m->data[i] = m->sending ? byte_of(a, b, m->tag, k, i) : 0;
    return m->sending ? mg_comm_send(comm, &m->request, m->peer, m->tag, m->data, bytes)
                      : mg_comm_receive(comm, &m->request, m->peer, m->tag, m->data, bytes);
}

static int arrived_well(mg_comm *comm, const mail *m)
{
    int me = mg_comm_rank(comm);
    int64_t bytes = m->sending ? 0 : length_of(m->peer, me, m->tag, m->k);
    for (int64_t i = 0; i < bytes; i++)
        if (m->data[i] != byte_of(m->peer, me, m->tag, m->k, i))
            return 0;
    return 1;
}

static int random_order(mg_comm *comm, mail *mails, int count, int *order, uint64_t seed)
{
    int ranks = mg_comm_size(comm), next[2][MOST][TAGS] = {0};
    for (int i = 0; i < count; i++)
        mails[i] = (mail){
            .data = mails[i].data, .peer = i / EACH / TAGS / 2, .tag = i / EACH % TAGS, .sending = i / EACH / TAGS % 2};
    shuffle(order, count, seed * 64 + (uint64_t)mg_comm_rank(comm));
    for (int i = 0; i < count; i++) {
        mail *m = &mails[order[i]];
        CHECK(!post_mail(comm, m, next[m->sending][m->peer][m->tag]++));
        int done;
        if (i % 3 == 0 && mails[order[i / 2]].request)
            CHECK(!mg_comm_test(comm, &mails[order[i / 2]].request, &done));
    }
    shuffle(order, count, seed * 64 + (uint64_t)(ranks + mg_comm_rank(comm)));
    for (int i = 0; i < count; i++) {
        CHECK(!mg_comm_wait(comm, &mails[order[i]].request));
        CHECK(arrived_well(comm, &mails[order[i]]));
    }
    return 0;
}

static int orders(mg_comm *comm, void *context)
{
    (void)context;
    int count = mg_comm_size(comm) * 2 * TAGS * EACH, status = 0;
    mail *mails = calloc((size_t)count, sizeof *mails);
    int *order = calloc((size_t)count, sizeof *order);
    for (int i = 0; i < count; i++)
        mails[i].data = malloc(LONGEST + 1);
    for (uint64_t seed = 0; seed < 5 && !status; seed++)
        status = random_order(comm, mails, count, order, seed);
    for (int i = 0; i < count; i++)
        free(mails[i].data);
    free(mails);
    free(order);
    return status;
}

static int many(mg_comm *comm, void *context)
{
    (void)context;
    enum { MANY = 1500 };
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm);
    mg_comm_request *requests[2 * MANY];
    int out[MANY], in[MANY];
    for (int i = 0; i < MANY; i++) {
        out[i] = me * MANY + i;
        CHECK(!mg_comm_send(comm, &requests[i], (me + 1) % ranks, i % 7 * 1000, &out[i], 4));
    }
    for (int i = 0; i < MANY; i++)
        CHECK(!mg_comm_receive(comm, &requests[MANY + i], (me + ranks - 1) % ranks, i % 7 * 1000, &in[i], 4));
    CHECK(!mg_comm_wait_all(comm, requests, 2 * MANY));
    for (int i = 0; i < MANY; i++)
        CHECK(in[i] == (me + ranks - 1) % ranks * MANY + i);
    return 0;
}

/* Odd and even ranks, ordered backwards; the last rank in no group. Groups and their parent talk at once. */
static int split(mg_comm *comm, void *context)
{
    (void)context;
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm), alone = ranks > 2 && me == ranks - 1;
    mg_comm *group;
    CHECK(!mg_comm_split(&group, comm, alone ? -1 : me % 2, -me));
    CHECK(alone == !group);
    mg_comm_request *requests[4] = {0};
    int outer = me, from_outer = -1, inner = 100 + me, from_inner = -1;
    CHECK(!mg_comm_receive(comm, &requests[0], (me + 1) % ranks, 4, &from_outer, 4));
    if (group) {
        int size = mg_comm_size(group), rank = mg_comm_rank(group);
        int members = (ranks - (ranks > 2) - me % 2 + 1) / 2;
        CHECK(size == members && rank == size - 1 - me / 2);
        int64_t sum = me;
        CHECK(!mg_comm_all_reduce(group, &sum, 1, MG_COMM_INT64, MG_COMM_SUM));
        CHECK(sum == (int64_t)size * (size - 1) + me % 2 * size);
        CHECK(!mg_comm_receive(group, &requests[1], (rank + 1) % size, 4, &from_inner, 4));
        CHECK(!mg_comm_send(group, &requests[2], (rank + size - 1) % size, 4, &inner, 4));
    }
    CHECK(!mg_comm_send(comm, &requests[3], (me + ranks - 1) % ranks, 4, &outer, 4));
    CHECK(!mg_comm_wait_all(comm, requests, 4));
    CHECK(from_outer == (me + 1) % ranks);
    if (group)
        CHECK(from_inner >= 100 && from_inner % 2 == me % 2);
    mg_comm_close(group);
    for (int i = 0; i < 5; i++) { /* contexts come back */
        CHECK(!mg_comm_split(&group, comm, 0, 0));
        CHECK(mg_comm_rank(group) == me && mg_comm_size(group) == ranks);
        mg_comm_close(group);
    }
    return 0;
}

static int agree(mg_comm *comm, void *context)
{
    (void)context;
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm);
    CHECK(!mg_comm_agree(comm, 0, NULL));
    int bad = ranks / 2, status = me >= bad ? -ENOENT - me : 0;
    char mine[64], expected[64];
    snprintf(mine, sizeof mine, "no file on %d", me);
    CHECK(mg_comm_agree(comm, status, mine) == -ENOENT - bad);
    snprintf(expected, sizeof expected, ": no file on %d", bad); /* lines name ranks of the job, not of the group */
    const char *line = mg_dp_last_error();
    CHECK(!strncmp(line, "rank ", 5) && strlen(line) > strlen(expected));
    CHECK(!strcmp(line + strlen(line) - strlen(expected), expected));
    CHECK(!mg_comm_agree(comm, 0, NULL));
    return 0;
}

static int refusals(mg_comm *comm, void *context)
{
    (void)context;
    mg_comm_request *request;
    int ranks = mg_comm_size(comm);
    char data[8];
    int64_t counts[MOST] = {-1};
    CHECK(mg_comm_send(comm, &request, ranks, 0, data, 8) == -EINVAL && !request);
    CHECK(mg_comm_send(comm, &request, -1, 0, data, 8) == -EINVAL);
    CHECK(mg_comm_receive(comm, &request, 0, 1 << 20, data, 8) == -EINVAL);
    CHECK(mg_comm_receive(comm, &request, 0, -1, data, 8) == -EINVAL);
    CHECK(mg_comm_receive(comm, &request, 0, 0, data, -8) == -EINVAL);
    CHECK(mg_comm_receive(comm, &request, 0, 0, NULL, 8) == -EINVAL);
    CHECK(mg_comm_all_reduce(comm, data, 8, MG_COMM_BYTE, MG_COMM_SUM) == -EINVAL);
    CHECK(mg_comm_all_reduce(comm, data, -1, MG_COMM_FP32, MG_COMM_SUM) == -EINVAL);
    CHECK(mg_comm_all_reduce(comm, data, INT64_MAX / 2, MG_COMM_FP32, MG_COMM_SUM) == -EINVAL);
    CHECK(mg_comm_all_reduce(comm, data, 1, (mg_comm_type)9, MG_COMM_SUM) == -EINVAL);
    CHECK(mg_comm_all_gather(comm, data, counts, MG_COMM_FP32) == -EINVAL);
    CHECK(mg_comm_broadcast(comm, data, 1, MG_COMM_FP32, ranks) == -EINVAL);
    return 0;
}

/* What is sent is what the header says. */
static int traffic(mg_comm *comm, void *context)
{
    int ranks = mg_comm_size(comm);
    if (*(int64_t *)context < 1 << 20)
        return 0;
    float data[840] = {0};
    mg_comm *group;
    CHECK(!mg_comm_split(&group, comm, 0, 0));
    mg_comm_traffic none = mg_comm_sent(group), before = mg_comm_sent(comm);
    CHECK(none.messages == 0 && none.bytes == 0);
    CHECK(!mg_comm_all_reduce(group, data, 840, MG_COMM_FP32, MG_COMM_SUM));
    mg_comm_traffic sent = mg_comm_sent(group), after = mg_comm_sent(comm);
    CHECK(sent.messages == 2 * (ranks - 1));
    CHECK(sent.bytes == 2 * (ranks - 1) * (840 * 4 / ranks));
    CHECK(after.bytes >= before.bytes);
    mg_comm_close(group);
    return 0;
}

const comm_case comm_cases[] = {
    {"all_reduce", all_reduce},
    {"long_all_reduce", long_all_reduce},
    {"reduce_scatter", reduce_scatter},
    {"all_gather", all_gather},
    {"all_to_all", all_to_all},
    {"broadcast", broadcast},
    {"barrier", barrier},
    {"sizes", sizes},
    {"orders", orders},
    {"many", many},
    {"split", split},
    {"agree", agree},
    {"refusals", refusals},
    {"traffic", traffic},
};
const int comm_case_count = sizeof comm_cases / sizeof comm_cases[0];
