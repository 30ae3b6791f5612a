/* A libnvidia-ml.so.1 without a GPU: every answer comes from a table in a file, which a test may rewrite at any time.
 *
 * The file ($FAKE_NVML_TABLE) has one `key value` a line. A key is `<who>.<function>[.<argument>...]`, where <who> is `gpu0`,
 * `mig0` or `sys`; the most exact key wins, and `<who>.*` or `*` overrides everything of its kind. A value is
 *
 *     a number, or several separated by blanks     what the function returns
 *     a text                                       for functions that return one
 *     !15                                          the NVML return code
 *     hang                                         the call does not return as long as the table says so
 *
 * Without an entry a function says NVML_ERROR_NOT_SUPPORTED, as a driver does for what its chip lacks. Events are lines
 * `event.<n> <gpu> <type> <data> [<gi> <ci>]`: each set gets every n that is greater than any it has had.
 *
 * Every call sees the file as it is. Where the collector's cost is measured, a driver that stats a file at each call would be
 * charged to it: $FAKE_NVML_CHECK_MS says for how long a table may be taken as it was. It is parsed in one pass, in place.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10 };
enum { DEVICES = 64, SLOTS = 1 << 15, LINES = SLOTS / 2, KEY = 96, VALUE = 200, EVENTS = 256 };

typedef struct { const char *key, *value; } line_t;
typedef struct { char who[8]; int number; } device_t;
typedef struct { unsigned long long registered; int last; } set_t;
typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_t;
typedef struct { uint32_t field, scope; int64_t time, latency; uint32_t type, result; uint64_t value; } field_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;
typedef struct { unsigned version; uint8_t cluster[16]; unsigned status; uint32_t clique; uint8_t state; uint32_t mask; uint8_t summary; } fabric_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *contents; /* of the file, cut into keys and values where they stand */
static size_t room;
static line_t lines[LINES];
static uint16_t slots[SLOTS]; /* number of the line with that hash, from 1 */
static int parsed, patterns;  /* lines, and those with a `*` */
static struct timespec read_at;
static ino_t read_inode;
static int initialised, inits;
static long long check_every_ms, checked_ms;
static device_t gpus[DEVICES], migs[DEVICES];

static unsigned slot(const char *key)
{
    unsigned h = 2166136261u;
    for (const char *at = key; *at; at++)
        h = (h ^ (unsigned char)*at) * 16777619u;
    for (h &= SLOTS - 1; slots[h] && strcmp(lines[slots[h] - 1].key, key); h = (h + 1) & (SLOTS - 1))
        ;
    return h;
}

static int load(const char *path, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;
    if (file < 0)
        return 0;
    if (size + 2 > room)
        contents = realloc(contents, room = size + size / 4 + 2);
    for (size = 0; size < room - 2 && (got = read(file, contents + size, room - 2 - size)) > 0; size += (size_t)got)
        ;
    close(file);
    memcpy(contents + size, "\n", 2); /* the last line may lack its end */
    return 1;
}

static void parse(void)
{
    memset(slots, 0, sizeof slots);
    parsed = patterns = 0;
    for (char *key = contents, *end, *value; (end = strchr(key, '\n')); key = end + 1) {
        *end = 0;
        if (!(value = strchr(key, ' ')) || value == key)
            continue;
        *value++ = 0;
        unsigned at = slot(key);
        if (!slots[at]) {
            if (parsed == LINES)
                abort(); /* a table that is cut short would lie */
            slots[at] = (uint16_t)++parsed;
            patterns += value[-2] == '*';
        }
        lines[slots[at] - 1] = (line_t){key, value};
    }
}

static int is_checked(void)
{
    struct timespec now;
    if (!check_every_ms)
        return 0;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    long long now_ms = now.tv_sec * 1000ll + now.tv_nsec / 1000000;
    if (parsed && now_ms - checked_ms < check_every_ms)
        return 1;
    checked_ms = now_ms;
    return 0;
}

static void reread(void)
{
    struct stat now;
    if (is_checked())
        return;
    const char *path = getenv("FAKE_NVML_TABLE");
    if (!path || stat(path, &now))
        return;
    if (contents && now.st_ino == read_inode && now.st_mtim.tv_sec == read_at.tv_sec && now.st_mtim.tv_nsec == read_at.tv_nsec)
        return;
    if (!load(path, (size_t)now.st_size))
        return;
    parse();
    read_at = now.st_mtim;
    read_inode = now.st_ino;
}

static int take(const char *key, char *value)
{
    unsigned found = slots[slot(key)];
    if (!found)
        return 0;
    size_t length = strnlen(lines[found - 1].value, VALUE - 1);
    memcpy(value, lines[found - 1].value, length);
    value[length] = 0;
    return 1;
}

/* `who.call`, cut at KEY. */
static void join(char *key, const char *who, const char *call)
{
    char *end = key + KEY - 1;
    while (*who && key < end)
        *key++ = *who++;
    if (key < end)
        *key++ = '.';
    while (*call && key < end)
        *key++ = *call++;
    *key = 0;
}

/* The value for a call, most exact key first; cut the key at its dots until one is there. */
static int look(const char *who, const char *call, char *value)
{
    char key[KEY];
    int found = 0;
    pthread_mutex_lock(&lock);
    reread();
    if (patterns) {
        join(key, who, "*");
        found = take("*", value) || take(key, value);
    }
    if (!found) {
        join(key, who, call);
        for (;;) {
            char *dot;
            if ((found = take(key, value)))
                break;
            dot = strrchr(key, '.');
            if (!dot || dot == strchr(key, '.'))
                break;
            *dot = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int answer(const char *who, const char *call, char *value)
{
    const struct timespec moment = {0, 2000000};
    for (;;) {
        if (!look(who, call, value))
            return NOT_SUPPORTED;
        if (!strcmp(value, "hang")) {
            nanosleep(&moment, NULL);
            continue;
        }
        return value[0] == '!' ? atoi(value + 1) : SUCCESS;
    }
}

static const char *name_of(device_t *device, char *name)
{
    const size_t length = strlen(device->who);
    memcpy(name, device->who, length);
    name[length] = (char)('0' + device->number / 10);
    char *end = name + length + (device->number >= 10);
    end[0] = (char)('0' + device->number % 10);
    end[1] = 0;
    return name;
}

static int of_device(device_t *device, const char *call, char *value)
{
    char name[16];
    if (!initialised)
        return UNINITIALIZED;
    if (!device)
        return INVALID_ARGUMENT;
    return answer(name_of(device, name), call, value);
}

static int number(device_t *device, const char *call, unsigned *out)
{
    char value[VALUE];
    int result = of_device(device, call, value);
    if (result == SUCCESS)
        *out = (unsigned)strtoul(value, NULL, 0);
    return result;
}

static int wide(device_t *device, const char *call, unsigned long long *out)
{
    char value[VALUE];
    int result = of_device(device, call, value);
    if (result == SUCCESS)
        *out = strtoull(value, NULL, 0);
    return result;
}

static int text(device_t *device, const char *call, char *out, unsigned length)
{
    char value[VALUE];
    int result = of_device(device, call, value);
    if (result == SUCCESS)
        snprintf(out, length, "%s", value);
    return result;
}

static int numbers(device_t *device, const char *call, unsigned **out, int count)
{
    char value[VALUE], *at = value;
    int result = of_device(device, call, value);
    for (int i = 0; result == SUCCESS && i < count; i++)
        *out[i] = (unsigned)strtoul(at, &at, 0);
    return result;
}

static int with_argument(char *call, const char *function, unsigned a)
{
    return snprintf(call, KEY, "%s.%u", function, a);
}

#define NUMBER(function) int function(device_t *d, unsigned *out) { return number(d, #function + 10, out); }
#define WIDE(function) int function(device_t *d, unsigned long long *out) { return wide(d, #function + 10, out); }
#define NUMBER_OF(function) int function(device_t *d, unsigned a, unsigned *out) \
    { char call[KEY]; with_argument(call, #function + 10, a); return number(d, call, out); }

int nvmlInitWithFlags(unsigned flags)
{
    char value[VALUE];
    (void)flags;
    if (!getenv("FAKE_NVML_TABLE"))
        return DRIVER_NOT_LOADED; /* it stays in a process that goes on to other tests */
    int result = look("sys", "Init", value) ? answer("sys", "Init", value) : SUCCESS;
    if (result == SUCCESS) {
        for (int i = 0; i < DEVICES; i++) {
            gpus[i] = (device_t){"gpu", i};
            migs[i] = (device_t){"mig", i};
        }
        const char *check = getenv("FAKE_NVML_CHECK_MS");
        pthread_mutex_lock(&lock);
        check_every_ms = check ? atoi(check) : 0;
        initialised++;
        inits++;
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    int result = UNINITIALIZED;
    pthread_mutex_lock(&lock);
    if (initialised) {
        initialised--;
        result = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* For tests: how often the library was initialised, and how many users it has now. */
int fake_inits(void) { return inits; }
int fake_users(void) { return initialised; }

static int of_system(const char *call, char *value) { return initialised ? answer("sys", call, value) : UNINITIALIZED; }

int nvmlDeviceGetCount_v2(unsigned *out)
{
    char value[VALUE];
    int result = of_system("Count", value);
    if (result == SUCCESS)
        *out = (unsigned)atoi(value);
    return result;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    char value[VALUE];
    int result = of_system("DriverVersion", value);
    if (result == SUCCESS)
        snprintf(out, length, "%s", value);
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out)
{
    char call[KEY], name[16], value[VALUE];
    if (!initialised)
        return UNINITIALIZED;
    if (index >= DEVICES)
        return INVALID_ARGUMENT;
    *out = &gpus[index];
    snprintf(call, KEY, "Handle");
    return look(name_of(*out, name), call, value) ? answer(name, call, value) : SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **out)
{
    char call[KEY];
    unsigned number_of_it;
    with_argument(call, "MigDevice", index);
    int result = number(d, call, &number_of_it);
    if (result == SUCCESS)
        *out = &migs[number_of_it % DEVICES];
    return result;
}

int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out)
{
    char value[VALUE];
    int result = of_device(d, "PciInfo", value);
    if (result == SUCCESS) {
        memset(out, 0, sizeof *out);
        snprintf(out->bus_id, sizeof out->bus_id, "%.31s", value);
    }
    return result;
}

int nvmlDeviceGetUUID(device_t *d, char *out, unsigned length) { return text(d, "UUID", out, length); }
int nvmlDeviceGetName(device_t *d, char *out, unsigned length) { return text(d, "Name", out, length); }
int nvmlDeviceGetSerial(device_t *d, char *out, unsigned length) { return text(d, "Serial", out, length); }
NUMBER(nvmlDeviceGetIndex)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus)
NUMBER(nvmlDeviceGetMaxMigDeviceCount)
NUMBER(nvmlDeviceGetGpuInstanceId)
NUMBER(nvmlDeviceGetComputeInstanceId)
WIDE(nvmlDeviceGetCurrentClocksEventReasons)
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons)
WIDE(nvmlDeviceGetSupportedEventTypes)
NUMBER_OF(nvmlDeviceGetTemperature)
NUMBER_OF(nvmlDeviceGetClockInfo)
NUMBER_OF(nvmlDeviceGetMaxClockInfo)
NUMBER_OF(nvmlDeviceGetNvLinkState)

int nvmlDeviceGetEccMode(device_t *d, unsigned *now, unsigned *pending)
{
    return numbers(d, "GetEccMode", (unsigned *[]){now, pending}, 2);
}

int nvmlDeviceGetMigMode(device_t *d, unsigned *now, unsigned *pending)
{
    return numbers(d, "GetMigMode", (unsigned *[]){now, pending}, 2);
}

int nvmlDeviceGetRemappedRows(device_t *d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failure)
{
    return numbers(d, "GetRemappedRows", (unsigned *[]){correctable, uncorrectable, pending, failure}, 4);
}

int nvmlDeviceGetRowRemapperHistogram(device_t *d, unsigned *out)
{
    return numbers(d, "GetRowRemapperHistogram", (unsigned *[]){out, out + 1, out + 2, out + 3, out + 4}, 5);
}

int nvmlDeviceGetMemoryErrorCounter(device_t *d, unsigned error, unsigned counter, unsigned place, unsigned long long *out)
{
    char call[KEY];
    snprintf(call, KEY, "GetMemoryErrorCounter.%u.%u.%u", error, counter, place);
    return wide(d, call, out);
}

int nvmlDeviceGetTotalEccErrors(device_t *d, unsigned error, unsigned counter, unsigned long long *out)
{
    char call[KEY];
    snprintf(call, KEY, "GetTotalEccErrors.%u.%u", error, counter);
    return wide(d, call, out);
}

int nvmlDeviceGetNvLinkErrorCounter(device_t *d, unsigned link, unsigned counter, unsigned long long *out)
{
    char call[KEY];
    snprintf(call, KEY, "GetNvLinkErrorCounter.%u.%u", link, counter);
    return wide(d, call, out);
}

int nvmlDeviceGetRetiredPages(device_t *d, unsigned cause, unsigned *count, unsigned long long *pages)
{
    char call[KEY];
    unsigned there;
    with_argument(call, "GetRetiredPages", cause);
    int result = number(d, call, &there);
    if (result != SUCCESS)
        return result;
    if (!pages || *count < there) {
        *count = there;
        return there ? INSUFFICIENT_SIZE : SUCCESS;
    }
    for (unsigned i = 0; i < there; i++)
        pages[i] = 4096ull * i;
    *count = there;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device_t *d, int count, field_t *fields)
{
    char value[VALUE], call[KEY];
    int result = of_device(d, "GetFieldValues", value);
    if (result != SUCCESS && result != NOT_SUPPORTED)
        return result;
    for (int i = 0; i < count; i++) {
        snprintf(call, KEY, "Field.%u.%u", fields[i].field, fields[i].scope);
        fields[i].result = (uint32_t)of_device(d, call, value);
        fields[i].type = 3;
        fields[i].value = fields[i].result == SUCCESS ? strtoull(value, NULL, 0) : 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(device_t *d, fabric_t *out)
{
    unsigned clique, state, mask, status, first;
    int result = numbers(d, "GetGpuFabricInfo", (unsigned *[]){&first, &clique, &state, &status, &mask}, 5);
    if (result == SUCCESS) {
        memset(out->cluster, (int)first, sizeof out->cluster);
        out->clique = clique;
        out->state = (uint8_t)state;
        out->status = status;
        out->mask = mask;
        if (out->version >> 24 >= 3)
            out->summary = 1;
    }
    return result;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out)
{
    char value[VALUE], *at = value;
    unsigned there = 0;
    int result = of_device(d, "Processes", value);
    if (result != SUCCESS)
        return result;
    for (char *each = value; *each; there += 1) { /* `<pid>[/<gi>/<ci>]`, separated by blanks */
        each += strcspn(each, " ");
        each += strspn(each, " ");
    }
    if (there > *count || (there && !out)) {
        *count = there;
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < there; i++) {
        out[i] = (process_t){(unsigned)strtoul(at, &at, 10), 1ull << 30, 0xFFFFFFFFu, 0xFFFFFFFFu};
        sscanf(at, "/%u/%u", &out[i].gi, &out[i].ci);
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    *count = there;
    return SUCCESS;
}

int nvmlEventSetCreate(set_t **out)
{
    if (!initialised)
        return UNINITIALIZED;
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

int nvmlEventSetFree(set_t *set)
{
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, set_t *set)
{
    char value[VALUE], name[16];
    (void)types;
    int result = look(name_of(d, name), "RegisterEvents", value) ? answer(name, "RegisterEvents", value) : SUCCESS;
    if (result == SUCCESS)
        set->registered |= 1ull << d->number;
    return result;
}

int nvmlEventSetWait_v2(set_t *set, event_t *out, unsigned wait_ms)
{
    /* A driver sleeps; looking often would be charged to the collector where that is measured. */
    const char *often = getenv("FAKE_NVML_WAIT_MS");
    const unsigned every_ms = often ? atoi(often) : 20;
    const struct timespec moment = {every_ms / 1000, every_ms % 1000 * 1000000};
    for (unsigned waited = 0;; waited += every_ms) {
        char value[VALUE], key[KEY];
        if (look("sys", "EventSetWait", value)) {
            int result = answer("sys", "EventSetWait", value);
            if (result != SUCCESS)
                return result;
        }
        for (int n = set->last + 1; n <= set->last + EVENTS; n++) {
            unsigned gpu, gi = 0xFFFFFFFFu, ci = 0xFFFFFFFFu;
            unsigned long long type, data;
            snprintf(key, KEY, "event.%d", n);
            pthread_mutex_lock(&lock);
            int found = take(key, value);
            pthread_mutex_unlock(&lock);
            if (!found)
                break;
            set->last = n;
            if (sscanf(value, "%u %llu %llu %u %u", &gpu, &type, &data, &gi, &ci) < 3)
                continue;
            if (!(set->registered >> gpu & 1))
                continue;
            *out = (event_t){&gpus[gpu], type, data, gi, ci};
            return SUCCESS;
        }
        if (waited >= wait_ms)
            return TIMEOUT;
        nanosleep(&moment, NULL);
    }
}

const char *nvmlErrorString(int result)
{
    static char text_of[32];
    snprintf(text_of, sizeof text_of, "code %d", result);
    return text_of;
}
