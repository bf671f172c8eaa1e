#ifndef PL_BASE_VERSION_H
#define PL_BASE_VERSION_H

#define PL_VERSION "0.1.0"

#endif
