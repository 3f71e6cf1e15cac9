/* A specification as it was read; decide.h is what others use. */
#ifndef TASKUQ_POLICY_H
#define TASKUQ_POLICY_H

#include "decide.h"

typedef enum { TWO, UPPER, LOWER } side_kind;
typedef enum { ONE, DEVIATION, MODERATED } scale_kind;

typedef struct { double low, high; } pair;

typedef struct {
    bool is_window, is_quantiles, is_trimmed, is_soft, has_level;
    side_kind side;
    double max_width, level, weight;
    pair place, levels;
    scale_kind scale;
    double shift; /* of the centre from the mean, in units of the scale */
    double less, degrees, trend, slope, least, added;
    pair covariates, soft;
} rule;

struct tq_policy {
    size_t samples, tasks, rounds;
    bool refuses_identical;
    double *thresholds; /* (round,) */
    pair *ranges;       /* (task,) */
    rule *rules;        /* (round, task) */
};

#endif
