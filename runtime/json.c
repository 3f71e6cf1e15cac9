/* A small reader of JSON. Names and texts keep their escapes: nothing here depends on them. */
#include "json.h"

#include <stdlib.h>
#include <string.h>

/* Names are compared one by one, so that many of them would take long; nothing known has as many. */
enum { DEEPEST = 16, MOST_NAMES = 32 };

typedef struct {
    const char *at;
    int depth;
} reader;

static int read_value(reader *in, json *out);

static void skip_space(reader *in) {
    while (*in->at == ' ' || *in->at == '\n' || *in->at == '\r' || *in->at == '\t') in->at++;
}

static int take(reader *in, char expected) {
    skip_space(in);
    if (*in->at != expected) return 0;
    in->at++;
    return 1;
}

static void clear(json *value) {
    for (size_t i = 0; i < value->count; i++) {
        clear(&value->items[i]);
        if (value->names != NULL) free(value->names[i]);
    }
    free(value->items);
    free(value->names);
    free(value->text);
    memset(value, 0, sizeof *value);
}

static char *read_text(reader *in) {
    if (!take(in, '"')) return NULL;
    const char *start = in->at;
    while (*in->at != '"') {
        if (*in->at == '\\' && in->at[1] != '\0') in->at++;
        if ((unsigned char)*in->at < 0x20) return NULL;
        in->at++;
    }
    size_t length = (size_t)(in->at - start);
    in->at++;
    char *text = malloc(length + 1);
    if (text == NULL) return NULL;
    memcpy(text, start, length);
    text[length] = '\0';
    return text;
}

static const char *digits(const char *at) {
    const char *start = at;
    while (*at >= '0' && *at <= '9') at++;
    return at > start ? at : NULL;
}

/* A whole number: 0, or one that does not begin with 0. */
static const char *whole(const char *at) {
    const char *end = digits(at);
    return end != NULL && *at == '0' && end > at + 1 ? NULL : end;
}

/* strtod knows more numbers than JSON does, so that the grammar is looked at first. */
static int read_number(reader *in, json *out) {
    const char *at = in->at + (*in->at == '-');
    if ((at = whole(at)) == NULL) return 0;
    out->is_whole = *at != '.' && *at != 'e' && *at != 'E';
    if (*at == '.' && (at = digits(at + 1)) == NULL) return 0;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if ((at = digits(at)) == NULL) return 0;
    }
    char *end = NULL;
    out->kind = JSON_NUMBER;
    out->number = strtod(in->at, &end);
    out->digits = in->at;
    out->count_digits = (size_t)(at - in->at);
    in->at = at;
    return end == at;
}

static int read_word(reader *in, const char *word, json_kind kind, json *out) {
    size_t length = strlen(word);
    if (strncmp(in->at, word, length) != 0) return 0;
    in->at += length;
    out->kind = kind;
    return 1;
}

static int grow(json *out) {
    size_t more = out->count + 1;
    /* Room for a power of two of entries: more is needed when their number is one. */
    if ((out->count & (out->count - 1)) == 0 || out->count == 0) {
        size_t room = out->count == 0 ? 1 : 2 * out->count;
        json *items = realloc(out->items, room * sizeof *items);
        if (items == NULL) return 0;
        out->items = items;
        if (out->kind == JSON_OBJECT) {
            char **names = realloc(out->names, room * sizeof *names);
            if (names == NULL) return 0;
            out->names = names;
        }
    }
    memset(&out->items[out->count], 0, sizeof *out->items);
    if (out->kind == JSON_OBJECT) out->names[out->count] = NULL;
    out->count = more;
    return 1;
}

/* The first wins for one reader and the last for another: a name twice is refused. */
static int is_new(const json *object, const char *name) {
    for (size_t i = 0; i + 1 < object->count; i++)
        if (strcmp(object->names[i], name) == 0) return 0;
    return object->count <= MOST_NAMES;
}

static int read_entries(reader *in, json *out, char closing) {
    if (take(in, closing)) return 1;
    do {
        if (!grow(out)) return 0;
        size_t last = out->count - 1;
        if (out->kind == JSON_OBJECT) {
            out->names[last] = read_text(in);
            if (out->names[last] == NULL || !is_new(out, out->names[last])) return 0;
            if (!take(in, ':')) return 0;
        }
        if (!read_value(in, &out->items[last])) return 0;
    } while (take(in, ','));
    return take(in, closing);
}

static int read_value(reader *in, json *out) {
    skip_space(in);
    if (*in->at == '{' || *in->at == '[') {
        char closing = *in->at == '{' ? '}' : ']';
        out->kind = *in->at == '{' ? JSON_OBJECT : JSON_LIST;
        if (++in->depth > DEEPEST) return 0;
        in->at++;
        int fine = read_entries(in, out, closing);
        in->depth--;
        return fine;
    }
    if (*in->at == '"') {
        out->kind = JSON_TEXT;
        out->text = read_text(in);
        return out->text != NULL;
    }
    return read_word(in, "null", JSON_NULL, out) || read_word(in, "true", JSON_TRUE, out) ||
           read_word(in, "false", JSON_FALSE, out) || read_number(in, out);
}

json *json_read(const char *document, size_t length) {
    reader in = {document, 0};
    json *value = memchr(document, '\0', length) == NULL ? calloc(1, sizeof *value) : NULL;
    if (value == NULL) return NULL;
    int fine = read_value(&in, value);
    skip_space(&in);
    if (fine && *in.at == '\0') return value;
    json_free(value);
    return NULL;
}

void json_free(json *value) {
    if (value == NULL) return;
    clear(value);
    free(value);
}

const json *json_get(const json *object, const char *name) {
    if (object == NULL || object->kind != JSON_OBJECT) return NULL;
    for (size_t i = 0; i < object->count; i++)
        if (strcmp(object->names[i], name) == 0) return &object->items[i];
    return NULL;
}

bool json_has_only(const json *object, const char *const *names) {
    if (object == NULL || object->kind != JSON_OBJECT) return false;
    for (size_t i = 0; i < object->count; i++) {
        size_t known = 0;
        while (names[known] != NULL && strcmp(object->names[i], names[known]) != 0) known++;
        if (names[known] == NULL) return false;
    }
    return true;
}
