/*
 * Numbers, sizes and durations from text, exactly: no floating point for what is counted, nothing
 * after the last character, no silent overflow.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "common/base/options.h"

/* A decimal number with up to nine digits after the point: whole + billionths * 1e-9. */
struct decimal {
    uint64_t whole;
    uint64_t billionths;
};

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"B", 1},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {"Ki", UINT64_C(1) << 10},
    {"Mi", UINT64_C(1) << 20},
    {"Gi", UINT64_C(1) << 30},
    {"Ti", UINT64_C(1) << 40},
    {"kB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
};

static const struct unit duration_units[] = {
    {"us", 1},
    {"ms", UINT64_C(1000)},
    {"s", UINT64_C(1000000)},
    {"m", UINT64_C(60000000)},
    {"min", UINT64_C(60000000)},
    {"h", UINT64_C(3600000000)},
    {"d", UINT64_C(86400000000)},
};

/* Moves *text past the number. */
static enum pp_status parse_decimal(const char **text, struct decimal *value_out)
{
    const char *at = *text;
    struct decimal value = {0, 0};
    if (!isdigit((unsigned char)*at)) {
        return PP_INVALID_ARGUMENT;
    }
    for (; isdigit((unsigned char)*at); ++at) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value.whole > (UINT64_MAX - digit) / 10) {
            return PP_INVALID_ARGUMENT;
        }
        value.whole = value.whole * 10 + digit;
    }
    if (*at == '.') {
        ++at;
        if (!isdigit((unsigned char)*at)) {
            return PP_INVALID_ARGUMENT;
        }
        uint64_t weight = 100000000;
        for (; isdigit((unsigned char)*at); ++at) {
            if (weight == 0 && *at != '0') {
                return PP_INVALID_ARGUMENT;
            }
            value.billionths += weight * (uint64_t)(*at - '0');
            weight /= 10;
        }
    }
    *text = at;
    *value_out = value;
    return PP_OK;
}

/* value * factor, rounded down. */
static enum pp_status scale(struct decimal value, uint64_t factor, uint64_t *product_out)
{
    unsigned __int128 product = (unsigned __int128)value.whole * factor;
    product += (unsigned __int128)value.billionths * factor / 1000000000u;
    if (product > UINT64_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    *product_out = (uint64_t)product;
    return PP_OK;
}

/* The unit whose name is the next letters of *text, moved past them; NULL for none. */
static const struct unit *parse_unit(const char **text, const struct unit *units, size_t count)
{
    size_t bytes = 0;
    while (isalpha((unsigned char)(*text)[bytes])) {
        ++bytes;
    }
    for (size_t index = 0; index < count; ++index) {
        if (strlen(units[index].name) == bytes &&
            strncasecmp(*text, units[index].name, bytes) == 0) {
            *text += bytes;
            return &units[index];
        }
    }
    return NULL;
}

enum pp_status pp_parse_u64(const char *text, uint64_t *value_out)
{
    struct decimal value;
    PP_TRY(parse_decimal(&text, &value));
    if (*text != '\0' || value.billionths != 0 || text[-1] == '.') {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = value.whole;
    return PP_OK;
}

/* The rest of a size behind its number: nothing (bytes) or a unit. */
static enum pp_status finish_size(struct decimal value, const char *text, uint64_t *bytes_out)
{
    if (*text == '\0') {
        if (value.billionths != 0) {
            return PP_INVALID_ARGUMENT;
        }
        *bytes_out = value.whole;
        return PP_OK;
    }
    text += *text == ' ' ? 1 : 0;
    const struct unit *unit =
        parse_unit(&text, size_units, sizeof(size_units) / sizeof(size_units[0]));
    if (unit == NULL || *text != '\0') {
        return PP_INVALID_ARGUMENT;
    }
    return scale(value, unit->factor, bytes_out);
}

enum pp_status pp_parse_size(const char *text, uint64_t whole, uint64_t *bytes_out)
{
    static const char of[] = "% of ";
    struct decimal value;
    PP_TRY(parse_decimal(&text, &value));
    if (*text != '%') {
        return finish_size(value, text, bytes_out);
    }
    bool above = value.whole > 100 || (value.whole == 100 && value.billionths > 0);
    if (whole == 0 || above) {
        return PP_INVALID_ARGUMENT;
    }
    if (strncmp(text, of, sizeof(of) - 1) == 0) {
        struct decimal named;
        text += sizeof(of) - 1;
        PP_TRY(parse_decimal(&text, &named));
        PP_TRY(finish_size(named, text, &whole));
    } else if (text[1] != '\0') {
        return PP_INVALID_ARGUMENT;
    }
    unsigned __int128 billionths = (unsigned __int128)value.whole * 1000000000u + value.billionths;
    *bytes_out = (uint64_t)(billionths * whole / 100000000000ull);
    return PP_OK;
}

enum pp_status pp_parse_duration(const char *text, uint64_t *duration_us_out)
{
    if (strcmp(text, "0") == 0) {
        *duration_us_out = 0;
        return PP_OK;
    }
    uint64_t sum = 0;
    do {
        struct decimal value;
        uint64_t part;
        PP_TRY(parse_decimal(&text, &value));
        const struct unit *unit =
            parse_unit(&text, duration_units, sizeof(duration_units) / sizeof(duration_units[0]));
        if (unit == NULL) {
            return PP_INVALID_ARGUMENT;
        }
        PP_TRY(scale(value, unit->factor, &part));
        if (sum > UINT64_MAX - part) {
            return PP_INVALID_ARGUMENT;
        }
        sum += part;
    } while (*text != '\0');
    *duration_us_out = sum;
    return PP_OK;
}
