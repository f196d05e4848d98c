/* Ranks as threads of a test, with messages between them: what a library that takes a port is tested with. A message is
 * copied when both its sides are posted, from the sender's memory to the receiver's, so that memory that is used too
 * early or too late is seen. Messages of two ranks with one tag match in the order they were posted. */
#ifndef TESTS_SUPPORT_PORT_H
#define TESTS_SUPPORT_PORT_H
#include <stdint.h>

typedef struct test_ports test_ports;
test_ports *test_ports_open(int ranks);
/* Fails where messages or requests are left, unless a rank failed. */
void test_ports_close(test_ports *ports);

/* Runs work(context, rank) on a thread for each rank; one that returns a status other than 0 wakes the others, whose
   calls then return -ECONNABORTED. Returns the status of the first to fail by itself. */
int test_ports_run(test_ports *ports, int (*work)(void *context, int rank), void *context);

/* From now on: calls take up to so long at random; the n-th call of all ranks fails with -EIO. 0: not. */
void test_ports_delay(test_ports *ports, int microseconds);
void test_ports_fail(test_ports *ports, int64_t call);
int test_ports_failed(const test_ports *ports);             /* the n-th call was reached */
int64_t test_ports_sent(const test_ports *ports, int rank); /* bytes so far; of one's own rank */

/* The callbacks; context: test_ports_of(). */
void *test_ports_of(test_ports *ports, int rank);
int test_port_send(void *context, void **request, int to, int tag, const void *data, int64_t bytes);
int test_port_receive(void *context, void **request, int from, int tag, void *data, int64_t bytes);
int test_port_test(void *context, void **request, int *done);
int test_port_wait(void *context, void **request);
#endif
