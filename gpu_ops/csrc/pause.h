// SPDX-License-Identifier: Apache-2.0
#pragma once

// A step of a loop that waits for another core.
static inline void pause_spinning() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    // Takes about as long as a pause of x86; most processors make nothing of `yield`.
    __asm__ volatile("isb" ::: "memory");
#endif
}
