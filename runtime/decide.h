/* Decide whether a scan stops, from the specification that `taskuq export-policy` writes. */
#ifndef TASKUQ_DECIDE_H
#define TASKUQ_DECIDE_H

#include <stdbool.h>
#include <stddef.h>

#include "json.h"

typedef struct tq_policy tq_policy;

/* Read a specification. On success NULL is returned and *policy is to be freed; otherwise what is
   wrong, in words. The document that it was read from has to be there still. */
const char *tq_read(const json *specification, tq_policy **policy);
void tq_free(tq_policy *policy);

size_t tq_tasks(const tq_policy *policy);
size_t tq_samples(const tq_policy *policy);
size_t tq_rounds(const tq_policy *policy);

/* Decide after a round, counted from 0.

   outputs holds rounds * samples * tasks numbers, (round, sample, task), of all rounds so far.
   lower and upper have room for a number of each task: what would be reported now. NULL is
   returned, or why nothing is decided; then *stop is false. */
const char *tq_decide(const tq_policy *policy, long round, const double *outputs, size_t rounds,
                      size_t samples, size_t tasks, bool *stop, double *lower, double *upper);

#endif
