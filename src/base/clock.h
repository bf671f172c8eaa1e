#ifndef PL_BASE_CLOCK_H
#define PL_BASE_CLOCK_H

/* Seconds of the monotonic clock; only differences mean something. */
double pl_clock(void);

#endif
