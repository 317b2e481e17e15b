/* Taking times. */
#ifndef SPILLWAY_BASE_TIMING_H
#define SPILLWAY_BASE_TIMING_H

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds of a clock that only goes forward, from some point of its own. */
double sw_seconds_now(void);

/* The median of `count` > 0 values, which it sorts; of an even number the mean of the middle two.
 */
double sw_median(double *values, int count);

#ifdef __cplusplus
}
#endif
#endif
