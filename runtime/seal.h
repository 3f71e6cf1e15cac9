/* Whether a record of taskuq is as it was written. */
#ifndef TASKUQ_SEAL_H
#define TASKUQ_SEAL_H

#include "json.h"

/* Whether the entry sha256 of a record is that of all others; true where it has none. The document
   that it was read from has to be there still. */
bool is_as_written(const json *record);

#endif
