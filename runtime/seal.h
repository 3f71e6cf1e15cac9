/* Whether a record of taskuq is as it was written. */
#ifndef TASKUQ_SEAL_H
#define TASKUQ_SEAL_H

#include "json.h"

/* Whether a record has an entry sha256, and it is that of all others. The document that it was read
   from has to be there still. */
bool is_as_written(const json *record);

#endif
