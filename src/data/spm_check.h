/* Is this a SentencePiece model that the library can be given? The library parses protobuf safely
 * but then trusts what it found: a normalizer's trie is walked without bounds. So the trie and the
 * pieces are checked here first. */
#ifndef SPILLWAY_DATA_SPM_CHECK_H
#define SPILLWAY_DATA_SPM_CHECK_H

#include "base/err.h"

#include <stdint.h>

/* SW_E_FORMAT with what is wrong; `what` names the file. */
sw_code sw_spm_check(const void *bytes, int64_t count, const char *what,
                     struct sw_err *err) SW_WARN_UNUSED;

#endif
