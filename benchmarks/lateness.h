/* Lateness of the server: time after the write minus due time, counted in buckets of 10 us. */
#ifndef BENCH_LATENESS_H
#define BENCH_LATENESS_H

#include "common.h"

#define LATE_STEP_NS 10000
#define LATE_BUCKETS 20000 /* the last one is unbounded, from 200 ms on */

struct lateness {
    uint64_t counts[LATE_BUCKETS], count;
    int64_t sum_ns, max_ns;
};

static inline void late_add(struct lateness *l, int64_t late_ns) {
    int64_t at = late_ns / LATE_STEP_NS;
    l->counts[at < LATE_BUCKETS ? at : LATE_BUCKETS - 1]++;
    l->count++;
    l->sum_ns += late_ns;
    if (late_ns > l->max_ns) l->max_ns = late_ns;
}

/* Lateness quantile in ms: the upper bound of its bucket. */
static inline double late_quantile_ms(const struct lateness *l, double share) {
    uint64_t cumulative = 0;
    for (int64_t at = 0; at < LATE_BUCKETS - 1; at++) {
        cumulative += l->counts[at];
        int64_t bound_ns = (at + 1) * LATE_STEP_NS;
        if ((double)cumulative >= share * (double)l->count) return (double)(bound_ns < l->max_ns ? bound_ns : l->max_ns) / MS;
    }
    return (double)l->max_ns / MS;
}

/* `"name": {"count": ..., "mean": ..., ...}`; null values without events. */
static inline size_t late_json(const struct lateness *l, const char *name, char *text, size_t size) {
    if (!l->count)
        return (size_t)snprintf(
            text, size, "\"%s\": {\"count\": 0, \"mean\": null, \"p50\": null, \"p99\": null, \"max\": null}", name);
    return (size_t)snprintf(text, size, "\"%s\": {\"count\": %llu, \"mean\": %.4f, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
                            name, (unsigned long long)l->count, (double)l->sum_ns / (double)l->count / MS,
                            late_quantile_ms(l, 0.5), late_quantile_ms(l, 0.99), (double)l->max_ns / MS);
}

#endif
