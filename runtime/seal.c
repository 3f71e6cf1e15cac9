/* Whether a specification is as it was written: the SHA-256 of everything but its last entry. */
#include "seal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t length;
} sha256;

static const uint32_t CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void take_block(sha256 *hash) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = hash->block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t early = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t late = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + early + w[i - 7] + late;
    }
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t chosen = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + chosen +
                         CONSTANTS[i] + w[i];
        uint32_t second = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + most;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) hash->state[i] += s[i];
}

static void add(sha256 *hash, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        hash->block[hash->length++ % 64] = (uint8_t)bytes[i];
        if (hash->length % 64 == 0) take_block(hash);
    }
}

static void add_text(sha256 *hash, const char *text) { add(hash, text, strlen(text)); }

static void finish(sha256 *hash, char hex[65]) {
    uint64_t bits = 8 * hash->length;
    add(hash, "\x80", 1);
    while (hash->length % 64 != 56) add(hash, "", 1);
    for (int i = 7; i >= 0; i--) {
        char byte = (char)(uint8_t)(bits >> 8 * i);
        add(hash, &byte, 1);
    }
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", (unsigned)hash->state[i]);
}

static void add_quoted(sha256 *hash, const char *text) {
    add_text(hash, "\"");
    add_text(hash, text);
    add_text(hash, "\"");
}

static void add_value(sha256 *hash, const json *value, const char *without);

/* The entries of an object by the order of their names, each of which is there once. */
static void add_object(sha256 *hash, const json *object, const char *without) {
    const char *last = NULL, *comma = "";
    add_text(hash, "{");
    for (;;) {
        size_t next = object->count;
        for (size_t i = 0; i < object->count; i++) {
            const char *name = object->names[i];
            bool is_left = last == NULL || strcmp(name, last) > 0;
            if (is_left && (next == object->count || strcmp(name, object->names[next]) < 0)) next = i;
        }
        if (next == object->count) break;
        last = object->names[next];
        if (without != NULL && strcmp(last, without) == 0) continue;
        add_text(hash, comma);
        add_quoted(hash, last);
        add_text(hash, ":");
        add_value(hash, &object->items[next], NULL);
        comma = ",";
    }
    add_text(hash, "}");
}

/* As Python writes it: without spaces, numbers and texts as they stand in the file. */
static void add_value(sha256 *hash, const json *value, const char *without) {
    switch (value->kind) {
    case JSON_NULL: add_text(hash, "null"); break;
    case JSON_FALSE: add_text(hash, "false"); break;
    case JSON_TRUE: add_text(hash, "true"); break;
    case JSON_NUMBER: add(hash, value->digits, value->count_digits); break;
    case JSON_TEXT: add_quoted(hash, value->text); break;
    case JSON_OBJECT: add_object(hash, value, without); break;
    case JSON_LIST:
        add_text(hash, "[");
        for (size_t i = 0; i < value->count; i++) {
            if (i > 0) add_text(hash, ",");
            add_value(hash, &value->items[i], NULL);
        }
        add_text(hash, "]");
    }
}

bool is_as_written(const json *record) {
    const json *said = json_get(record, "sha256");
    if (said == NULL || said->kind != JSON_TEXT) return false;
    sha256 hash = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                    0x5be0cd19}, {0}, 0};
    char hex[65];
    add_value(&hash, record, "sha256");
    finish(&hash, hex);
    return strcmp(hex, said->text) == 0;
}
