/* JSON as it is read: whole documents, within limits, nothing guessed. */
#ifndef TASKUQ_JSON_H
#define TASKUQ_JSON_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_TEXT, JSON_LIST, JSON_OBJECT } json_kind;

typedef struct json {
    json_kind kind;
    double number;
    const char *digits;  /* of a number, in the document that was read */
    size_t count_digits;
    bool is_whole;       /* a number without fraction and exponent */
    char *text;          /* of a JSON_TEXT */
    size_t count;        /* entries of a list or an object */
    struct json *items;
    char **names;        /* of an object's entries */
} json;

/* Read a document of so many bytes, with a zero byte behind them. NULL where it is no JSON, holds a
   zero byte or a name twice, goes beyond the limits, or memory ran out. */
json *json_read(const char *document, size_t length);
void json_free(json *value);

/* The entry of an object by its name; NULL where there is none. */
const json *json_get(const json *object, const char *name);

/* Whether something is an object with no other names than these, of which the last is NULL. */
bool json_has_only(const json *object, const char *const *names);

#endif
