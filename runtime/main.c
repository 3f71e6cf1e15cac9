/* Decide about outputs: decide SPECIFICATION.json, a line {"round": ..., "outputs": ...} each. */
#include "decide.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes of a specification, and of a line. */
#define LONGEST ((size_t)4 << 20)

/* Read up to a byte, or to the end, into room for LONGEST bytes and a zero byte; false where nothing
   is left. length counts what did not fit as well. */
static bool read_until(FILE *from, int last, char *text, size_t *length) {
    int next;
    *length = 0;
    while ((next = getc(from)) != EOF && next != last) {
        if (*length < LONGEST) text[*length] = (char)next;
        if (*length <= LONGEST) ++*length;
    }
    text[*length < LONGEST ? *length : LONGEST] = '\0';
    return *length > 0 || next != EOF;
}

static size_t length_of(const json *list) {
    return list != NULL && list->kind == JSON_LIST ? list->count : 0;
}

/* Whether a list has rounds of as many samples of as many tasks as the policy knows. */
static bool fits(const tq_policy *policy, const json *outputs) {
    size_t rounds = length_of(outputs);
    for (size_t k = 0; k < rounds; k++) {
        const json *of_round = &outputs->items[k];
        if (length_of(of_round) != tq_samples(policy)) return false;
        for (size_t j = 0; j < of_round->count; j++)
            if (length_of(&of_round->items[j]) != tq_tasks(policy)) return false;
    }
    return rounds > 0 && rounds <= tq_rounds(policy);
}

/* Outputs that fit as numbers (round, sample, task); NULL where some are not, or memory ran out. */
static double *numbers(const tq_policy *policy, const json *outputs) {
    size_t samples = tq_samples(policy), tasks = tq_tasks(policy), next = 0;
    double *found = calloc(outputs->count * samples * tasks, sizeof *found);
    for (size_t k = 0; found != NULL && k < outputs->count; k++)
        for (size_t j = 0; j < samples; j++)
            for (size_t t = 0; t < tasks; t++) {
                const json *output = &outputs->items[k].items[j].items[t];
                if (output->kind != JSON_NUMBER) {
                    free(found);
                    return NULL;
                }
                found[next++] = output->number;
            }
    return found;
}

static void print_ends(const char *name, const double *ends, size_t count) {
    printf(", \"%s\": [", name);
    for (size_t t = 0; t < count; t++) {
        if (isfinite(ends[t])) printf("%s%.17g", t > 0 ? ", " : "", ends[t]);
        else printf("%s\"%s\"", t > 0 ? ", " : "", ends[t] > 0 ? "inf" : "-inf");
    }
    printf("]");
}

/* Decide about a line; NULL, or why nothing is decided. */
static const char *decided(const tq_policy *policy, const json *line, bool *stop, double *ends) {
    const json *round = json_get(line, "round"), *outputs = json_get(line, "outputs");
    if (!json_has_only(line, (const char *const[]){"round", "outputs", NULL}))
        return "the line is no JSON of a round and outputs alone, each once";
    if (round == NULL || round->kind != JSON_NUMBER || !round->is_whole || fabs(round->number) >= 1e6)
        return "the round is not a whole number";
    if (!fits(policy, outputs))
        return "outputs are not (round, sample, task) of as many as the policy was calibrated with";
    double *found = numbers(policy, outputs);
    if (found == NULL) return "an output is not a number, or memory ran out";
    const char *wrong =
        tq_decide(policy, (long)round->number, found, outputs->count, tq_samples(policy),
                  tq_tasks(policy), stop, ends, ends + tq_tasks(policy));
    free(found);
    return wrong;
}

static void answer(const tq_policy *policy, const char *text, size_t length) {
    size_t known = tq_tasks(policy);
    json *line = length <= LONGEST ? json_read(text, length) : NULL;
    double *ends = calloc(2 * known, sizeof *ends);
    bool stop = false;
    const char *wrong = "memory ran out";
    if (length > LONGEST) wrong = "the line is longer than 4 MiB";
    else if (ends != NULL) wrong = decided(policy, line, &stop, ends);
    if (wrong != NULL) {
        printf("{\"refused\": \"%s\"}\n", wrong);
    } else {
        printf("{\"stop\": %s", stop ? "true" : "false");
        print_ends("lower", ends, known);
        print_ends("upper", ends + known, known);
        printf("}\n");
    }
    fflush(stdout);
    json_free(line);
    free(ends);
}

int main(int count, char **words) {
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    char *text = malloc(LONGEST + 1);
    size_t length = 0;
    json *specification = NULL;
    tq_policy *policy = NULL;
    if (file != NULL && text != NULL && read_until(file, EOF, text, &length) && length <= LONGEST)
        specification = json_read(text, length);
    const char *wrong = count != 2 ? "call decide SPECIFICATION.json"
                                   : "the file is no JSON of at most 4 MiB, with each name once";
    if (specification != NULL) wrong = tq_read(specification, &policy);
    if (file != NULL) fclose(file);
    json_free(specification);
    if (policy == NULL) {
        free(text);
        fprintf(stderr, "%s\n", wrong);
        return 2;
    }
    while (read_until(stdin, '\n', text, &length)) answer(policy, text, length);
    free(text);
    tq_free(policy);
    return ferror(stdin) || ferror(stdout) ? 1 : 0;
}
