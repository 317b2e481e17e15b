/* What every method of communication must do, whoever drives the members of a group: one thread, a
 * thread each, or a process each. */
#ifndef SPILLWAY_TESTS_COMM_SUITE_H
#define SPILLWAY_TESTS_COMM_SUITE_H

#include "kernels/comm.h"

enum { COMM_MEMBERS = 8 };

struct comm_rig {
    const struct sw_device_ops *ops;
    const struct sw_comm_ops *comms;
    const char *name;      /* of the method */
    int smallest, largest; /* sizes of groups to try */
    int devices;           /* member m is on physical device m mod this */
    int64_t most;          /* elements of the longest sums */
    bool threads;          /* a thread for each member */
    int process;           /* the only member here; -1: all are */
    /* With `process`: an id of member 0's, the same for all; everybody calls it. NULL else. */
    void (*share_id)(struct sw_comm_id *id);
};

/* cmocka's result. */
int comm_suite_run(const struct comm_rig *rig);

#endif
