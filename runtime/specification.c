/* Read a specification, and refuse what is not known. */
#include "policy.h"
#include "seal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Outputs of a case, and the parts of a specification: sizes are never multiplied beyond it. */
enum { MOST = 1000000 };

static bool is_text(const json *value, const char *text) {
    return value != NULL && value->kind == JSON_TEXT && strcmp(value->text, text) == 0;
}

static bool read_number(const json *value, double *out) {
    if (value == NULL) return false;
    if (is_text(value, "inf")) *out = INFINITY;
    else if (is_text(value, "-inf")) *out = -INFINITY;
    else if (value->kind == JSON_NUMBER) *out = value->number;
    else return false;
    return true;
}

static bool read_finite(const json *value, double *out) {
    return read_number(value, out) && isfinite(*out);
}

/* A pair, or everything where it is null. */
static bool read_pair(const json *value, pair *out) {
    *out = (pair){-INFINITY, INFINITY};
    if (value == NULL) return false;
    if (value->kind == JSON_NULL) return true;
    return value->kind == JSON_LIST && value->count == 2 && read_number(&value->items[0], &out->low) &&
           read_number(&value->items[1], &out->high) && out->low <= out->high;
}

/* Names that end with NULL. */
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *read_center(const json *value, rule *out) {
    const json *kind = json_get(value, "kind");
    out->is_trimmed = is_text(kind, "trimmed-mean");
    bool is_mean = out->is_trimmed || is_text(kind, "mean");
    if (is_mean && json_has_only(value, NAMES("kind"))) return NULL;
    if (is_mean && json_has_only(value, NAMES("kind", "shift")))
        return read_finite(json_get(value, "shift"), &out->shift) ? NULL : "a shift is not a number";
    if (!is_text(kind, "quantiles") || !json_has_only(value, NAMES("kind", "levels")))
        return "a center is not known";
    out->is_quantiles = true;
    const json *levels = json_get(value, "levels");
    bool fine = levels != NULL && levels->kind == JSON_LIST && read_pair(levels, &out->levels);
    return fine && out->levels.low >= 0 && out->levels.high <= 1 ? NULL : "levels are not two shares";
}

static const char *read_scale(const json *value, rule *out) {
    const char *const *names = NAMES("kind", "degrees", "trend", "slope", "covariates", "soft", "least",
                                           "added");
    const json *kind = json_get(value, "kind"), *soft = json_get(value, "soft");
    if (is_text(kind, "one") && json_has_only(value, NAMES("kind"))) {
        out->scale = ONE;
        return NULL;
    }
    if (is_text(kind, "deviation") && json_has_only(value, NAMES("kind", "less"))) {
        out->scale = DEVIATION;
        bool fine = read_finite(json_get(value, "less"), &out->less);
        return fine && (out->less == 0 || out->less == 1) ? NULL : "a deviation is less 0 or 1";
    }
    if (!is_text(kind, "moderated") || !json_has_only(value, names)) return "a scale is not known";
    out->scale = MODERATED;
    out->is_soft = soft != NULL && soft->kind != JSON_NULL;
    bool fine = read_finite(json_get(value, "degrees"), &out->degrees) && out->degrees > 0 &&
                read_finite(json_get(value, "trend"), &out->trend) && out->trend >= 0 &&
                read_finite(json_get(value, "slope"), &out->slope) &&
                read_finite(json_get(value, "least"), &out->least) && out->least >= 0 &&
                read_finite(json_get(value, "added"), &out->added) && out->added >= 0 &&
                read_pair(json_get(value, "covariates"), &out->covariates) &&
                read_pair(soft, &out->soft);
    if (!fine) return "a moderated scale lacks a number";
    fine = !out->is_soft || (isfinite(out->soft.low) && out->soft.high - out->soft.low > 0);
    return fine ? NULL : "a soft range is not two numbers";
}

static const char *read_goal(const json *value, rule *out) {
    const json *side = json_get(value, "side"), *width = json_get(value, "max_width");
    const json *level = json_get(value, "level");
    if (is_text(side, "two")) out->side = TWO;
    else if (is_text(side, "upper")) out->side = UPPER;
    else if (is_text(side, "lower")) out->side = LOWER;
    else return "a side is not known";
    if (width == NULL || level == NULL || (width->kind == JSON_NULL) == (level->kind == JSON_NULL))
        return "a goal is a width or a level";
    out->has_level = width->kind == JSON_NULL;
    if (out->has_level)
        return out->side != TWO && read_finite(level, &out->level) ? NULL : "a level is not a number";
    return read_finite(width, &out->max_width) && out->max_width > 0 ? NULL : "a width is not positive";
}

static const char *read_rule(const json *value, rule *out) {
    if (!json_has_only(value, NAMES("report", "weight", "place", "side", "max_width", "level", "center",
                                    "scale")))
        return "a rule is not known";
    const char *wrong = read_goal(value, out);
    if (wrong == NULL) wrong = read_center(json_get(value, "center"), out);
    if (wrong == NULL) wrong = read_scale(json_get(value, "scale"), out);
    if (wrong != NULL) return wrong;
    if (is_text(json_get(value, "report"), "interval")) return NULL;
    if (!is_text(json_get(value, "report"), "window")) return "a report is not known";
    out->is_window = true;
    if (out->is_quantiles) return "a window is around a mean";
    bool fine = read_finite(json_get(value, "weight"), &out->weight) && out->weight > 0;
    return fine && read_pair(json_get(value, "place"), &out->place) ? NULL : "a window has no place";
}

static const char *read_all(const json *from, tq_policy *out) {
    const json *thresholds = json_get(from, "thresholds"), *rules = json_get(from, "rules");
    const json *ranges = json_get(from, "ranges");
    out->thresholds = calloc(out->rounds, sizeof *out->thresholds);
    out->ranges = calloc(out->tasks, sizeof *out->ranges);
    out->rules = calloc(out->rounds * out->tasks, sizeof *out->rules);
    if (out->thresholds == NULL || out->ranges == NULL || out->rules == NULL) return "memory ran out";
    for (size_t t = 0; t < out->tasks; t++)
        if (!read_pair(&ranges->items[t], &out->ranges[t])) return "a range is not two numbers";
    for (size_t k = 0; k < out->rounds; k++) {
        const json *of_round = &rules->items[k];
        if (!read_number(&thresholds->items[k], &out->thresholds[k])) return "a threshold is no number";
        if (of_round->kind != JSON_LIST || of_round->count != out->tasks) return "rules are missing";
        for (size_t t = 0; t < out->tasks; t++) {
            const char *wrong = read_rule(&of_round->items[t], &out->rules[k * out->tasks + t]);
            if (wrong != NULL) return wrong;
        }
    }
    return NULL;
}

static bool is_list(const json *value, size_t *count) {
    if (value == NULL || value->kind != JSON_LIST || value->count == 0 || value->count > MOST) return false;
    *count = value->count;
    return true;
}

const char *tq_read(const json *specification, tq_policy **policy) {
    size_t ranges = 0, rules = 0;
    double samples = 0;
    *policy = NULL;
    if (!is_text(json_get(specification, "schema"), "taskuq.decide/1"))
        return "this is no specification of taskuq.decide/1";
    if (!json_has_only(specification, NAMES("schema", "policy", "samples", "tasks", "ranges",
                                            "refuse_identical", "thresholds", "rules", "sha256")))
        return "the specification says more than is known here";
    if (json_get(specification, "sha256") == NULL)
        return "the specification has no sha256: nobody can tell whether it is as it was written; write it again";
    if (!is_as_written(specification)) return "the specification is not as it was written; write it again";
    tq_policy *made = calloc(1, sizeof *made);
    if (made == NULL) return "memory ran out";
    const json *refuse = json_get(specification, "refuse_identical");
    const char *wrong = NULL;
    const json *count = json_get(specification, "samples");
    if (!read_finite(count, &samples) || !count->is_whole || samples < 1 || samples > MOST)
        wrong = "the number of samples is not a whole number above 0";
    else if (refuse == NULL || (refuse->kind != JSON_TRUE && refuse->kind != JSON_FALSE))
        wrong = "refuse_identical is not true or false";
    else if (!is_list(json_get(specification, "tasks"), &made->tasks) ||
             !is_list(json_get(specification, "ranges"), &ranges) || ranges != made->tasks ||
             !is_list(json_get(specification, "thresholds"), &made->rounds) ||
             !is_list(json_get(specification, "rules"), &rules) || rules != made->rounds ||
             made->rounds > MOST / made->tasks || samples > MOST / (double)(made->rounds * made->tasks))
        wrong = "tasks, ranges, thresholds and rules do not fit";
    else {
        made->samples = (size_t)samples;
        made->refuses_identical = refuse->kind == JSON_TRUE;
        wrong = read_all(specification, made);
    }
    if (wrong != NULL) tq_free(made);
    else *policy = made;
    return wrong;
}

void tq_free(tq_policy *policy) {
    if (policy == NULL) return;
    free(policy->thresholds);
    free(policy->ranges);
    free(policy->rules);
    free(policy);
}

size_t tq_tasks(const tq_policy *policy) { return policy->tasks; }

size_t tq_samples(const tq_policy *policy) { return policy->samples; }

size_t tq_rounds(const tq_policy *policy) { return policy->rounds; }
