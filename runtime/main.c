/* Decide about outputs: decide SPECIFICATION.json, a line {"round": ..., "outputs": ...} each. */
#include "decide.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All of a stream up to a byte, or its end; NULL where nothing is left or memory ran out. */
static char *read_until(FILE *from, int last) {
    size_t length = 0, room = 1024;
    char *text = malloc(room);
    int next = EOF;
    while (text != NULL && (next = getc(from)) != EOF && next != last) {
        if (length + 2 > room) {
            char *more = realloc(text, room *= 2);
            if (more == NULL) free(text);
            text = more;
            if (text == NULL) return NULL;
        }
        text[length++] = (char)next;
    }
    if (text != NULL && length == 0 && next == EOF) {
        free(text);
        return NULL;
    }
    if (text != NULL) text[length] = '\0';
    return text;
}

static size_t length_of(const json *list) {
    return list != NULL && list->kind == JSON_LIST ? list->count : 0;
}

/* The outputs of a line as numbers (round, sample, task); NULL where they are not. */
static double *numbers(const json *outputs, size_t *rounds, size_t *samples, size_t *tasks) {
    *rounds = length_of(outputs);
    *samples = *rounds > 0 ? length_of(&outputs->items[0]) : 0;
    *tasks = *samples > 0 ? length_of(&outputs->items[0].items[0]) : 0;
    double *found = *tasks > 0 ? malloc(*rounds * *samples * *tasks * sizeof *found) : NULL;
    size_t next = 0;
    for (size_t k = 0; found != NULL && k < *rounds; k++)
        for (size_t j = 0; found != NULL && j < *samples; j++) {
            const json *of_round = &outputs->items[k];
            const json *sample = length_of(of_round) == *samples ? &of_round->items[j] : NULL;
            for (size_t t = 0; found != NULL && t < *tasks; t++) {
                if (length_of(sample) == *tasks && sample->items[t].kind == JSON_NUMBER) {
                    found[next++] = sample->items[t].number;
                } else {
                    free(found);
                    found = NULL;
                }
            }
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

static void answer(const tq_policy *policy, const json *line) {
    const json *round = json_get(line, "round");
    size_t rounds = 0, samples = 0, tasks = 0, known = tq_tasks(policy);
    double *outputs = numbers(json_get(line, "outputs"), &rounds, &samples, &tasks);
    double *ends = calloc(2 * known, sizeof *ends);
    bool stop = false;
    const char *wrong = "the line has no round, or its outputs are not (round, sample, task)";
    if (outputs != NULL && ends != NULL && round != NULL && round->kind == JSON_NUMBER &&
        fabs(round->number) < 1e6 && round->number == floor(round->number))
        wrong = tq_decide(policy, (long)round->number, outputs, rounds, samples, tasks, &stop, ends,
                          ends + known);
    if (wrong != NULL) {
        printf("{\"refused\": \"%s\"}\n", wrong);
    } else {
        printf("{\"stop\": %s", stop ? "true" : "false");
        print_ends("lower", ends, known);
        print_ends("upper", ends + known, known);
        printf("}\n");
    }
    fflush(stdout);
    free(outputs);
    free(ends);
}

int main(int count, char **words) {
    FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
    char *text = file != NULL ? read_until(file, EOF) : NULL;
    json *specification = text != NULL ? json_read(text) : NULL;
    tq_policy *policy = NULL;
    const char *wrong = count != 2 ? "call decide SPECIFICATION.json" : "the file is no JSON";
    if (specification != NULL) wrong = tq_read(specification, &policy);
    if (file != NULL) fclose(file);
    free(text);
    json_free(specification);
    if (policy == NULL) {
        fprintf(stderr, "%s\n", wrong);
        return 2;
    }
    char *line;
    while ((line = read_until(stdin, '\n')) != NULL) {
        json *asked = json_read(line);
        answer(policy, asked);
        json_free(asked);
        free(line);
    }
    tq_free(policy);
    return 0;
}
