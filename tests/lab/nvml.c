/* libnvidia-ml.so.1 for a host without GPUs: it tells what a file says, which a test changes while it is read.
   The layout of the file stands a second time in nvml.py. A negative number is a value that the device lacks. */
#include <fcntl.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STATE "/run/lab/state"
#define MAX_DEVICES 16
#define MAX_PROCESSES 16
enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9 };

typedef struct { int64_t pid, memory; } Process;

typedef struct {
    char name[96], uuid[96], serial[32], bus[32], vbios[32];
    int64_t error;
    int64_t temperature, utilization, memory_utilization;
    int64_t power_mw, wave_mw, wave_ms, energy_uj, since_ns, power_limit_mw, usual_power_limit_mw;
    int64_t memory_total, memory_used, memory_reserved;
    int64_t sm_clock, memory_clock, sm_clock_max, memory_clock_max, clock_reasons;
    int64_t ecc_enabled, ecc_corrected, ecc_uncorrected, ecc_corrected_total, ecc_uncorrected_total;
    int64_t rows_corrected, rows_uncorrected, rows_pending, rows_failed;
    int64_t pcie_tx_kb, pcie_rx_kb, pcie_generation, pcie_generation_max, pcie_width, pcie_width_max, pcie_replays;
    int64_t links, links_down, link_errors;
    int64_t mig, persistence, fan, performance_state, major, minor, num_processes;
    Process processes[MAX_PROCESSES];
} Device;

typedef struct {
    uint64_t version; /* odd while a test writes */
    int64_t error, count, cuda;
    char driver[96];
    Device devices[MAX_DEVICES];
} State;

static volatile State *shared;
static int started;

uint64_t lab_state_size(void) { return sizeof(State); }

static int open_state(void) {
    const char *given = getenv("LAB_NVML_STATE");
    int file = open(given ? given : STATE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return DRIVER_NOT_LOADED;
    void *map = mmap(NULL, sizeof(State), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED) return DRIVER_NOT_LOADED;
    shared = map;
    return SUCCESS;
}

/* A copy that no write tore. */
static void read_whole(void *to, size_t offset, size_t size) {
    for (;;) {
        uint64_t before = __atomic_load_n(&shared->version, __ATOMIC_ACQUIRE);
        memcpy(to, (const char *)shared + offset, size);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1) && before == shared->version) return;
        usleep(20);
    }
}

static int device(void *handle, Device *out) {
    if (!started) return UNINITIALIZED;
    uintptr_t index = (uintptr_t)handle - 1;
    if (index >= (uintptr_t)shared->count) return INVALID_ARGUMENT;
    read_whole(out, offsetof(State, devices) + index * sizeof(Device), sizeof(Device));
    return (int)out->error;
}

static int text(const char *value, char *out, unsigned size) {
    if (!out) return INVALID_ARGUMENT;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Power is a constant and a sine; the energy counter is its exact integral since the last change. */
static double angle(const Device *d, int64_t ns) { return 2 * M_PI * fmod(ns / 1e6 / d->wave_ms, 1.0); }

static double power_mw(const Device *d) {
    return d->power_mw + (d->wave_ms > 0 ? d->wave_mw * sin(angle(d, now_ns())) : 0);
}

static double energy_mj(const Device *d) {
    int64_t now = now_ns();
    double sum = d->energy_uj / 1e3 + d->power_mw * ((now - d->since_ns) / 1e9);
    if (d->wave_ms > 0)
        sum += d->wave_mw * (d->wave_ms / 1e3) / (2 * M_PI) * (cos(angle(d, d->since_ns)) - cos(angle(d, now)));
    return sum;
}

#define VALUE(type, value) \
    do { \
        Device d; \
        int failed = device(handle, &d); \
        if (failed) return failed; \
        int64_t v = (value); \
        if (v < 0) return NOT_SUPPORTED; \
        *out = (type)v; \
        return SUCCESS; \
    } while (0)
#define GET(name, type, value) int nvmlDevice##name(void *handle, type *out) { VALUE(type, value); }
#define PICK(name, type, value) int nvmlDevice##name(void *handle, unsigned which, type *out) { VALUE(type, value); }
#define TEXT(name, field) \
    int nvmlDevice##name(void *handle, char *out, unsigned size) { \
        Device d; \
        int failed = device(handle, &d); \
        return failed ? failed : text(d.field, out, size); \
    }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failed = shared ? SUCCESS : open_state();
    if (!failed) failed = (int)shared->error;
    if (!failed) started++;
    return failed;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return started ? (started--, SUCCESS) : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NOT_SUPPORTED: return "The requested operation is not available on target device";
    case NOT_FOUND: return "A query to find an object was unsuccessful";
    case INSUFFICIENT_SIZE: return "An input argument is not large enough";
    case DRIVER_NOT_LOADED: return "NVIDIA driver is not loaded";
    case 15: return "The GPU has fallen off the bus or has otherwise become inaccessible";
    case 18: return "Driver/library version mismatch";
    default: return "An internal driver error occurred";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char driver[sizeof shared->driver];
    if (!started) return UNINITIALIZED;
    read_whole(driver, offsetof(State, driver), sizeof driver);
    return text(driver, out, size);
}
int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    char full[112], driver[sizeof shared->driver];
    if (!started) return UNINITIALIZED;
    read_whole(driver, offsetof(State, driver), sizeof driver);
    snprintf(full, sizeof full, "%d.%s", (int)(shared->cuda / 1000), driver);
    return text(full, out, size);
}
int nvmlSystemGetCudaDriverVersion(int *out) { return started ? (*out = (int)shared->cuda, SUCCESS) : UNINITIALIZED; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NOT_FOUND;
    ssize_t got = read(file, out, size - 1);
    close(file);
    out[got > 0 ? got : 0] = 0;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *out) { return started ? (*out = (unsigned)shared->count, SUCCESS) : UNINITIALIZED; }
int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    Device d;
    int failed = device((void *)(uintptr_t)(index + 1), &d);
    if (!failed) *out = (void *)(uintptr_t)(index + 1);
    return failed;
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

static int find(const char *wanted, size_t field, void **out) {
    if (!started) return UNINITIALIZED;
    for (int64_t i = 0; i < shared->count; i++) {
        Device d;
        read_whole(&d, offsetof(State, devices) + i * sizeof(Device), sizeof d);
        if (!strcasecmp(wanted, (const char *)&d + field)) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, out);
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *id, void **out) { return find(id, offsetof(Device, uuid), out); }
int nvmlDeviceGetHandleBySerial(const char *id, void **out) { return find(id, offsetof(Device, serial), out); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **out) { return find(id, offsetof(Device, bus), out); }
int nvmlDeviceGetHandleByPciBusId(const char *id, void **out) { return find(id, offsetof(Device, bus), out); }

TEXT(GetName, name)
TEXT(GetUUID, uuid)
TEXT(GetSerial, serial)
TEXT(GetVbiosVersion, vbios)
GET(GetIndex, unsigned, (int64_t)(uintptr_t)handle - 1)
GET(GetMinorNumber, unsigned, (int64_t)(uintptr_t)handle - 1)
PICK(GetTemperature, unsigned, which == 0 ? d.temperature : -1)
typedef struct { unsigned version, sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(void *handle, Temperature *out) {
    return nvmlDeviceGetTemperature(handle, out->sensor, (unsigned *)&out->temperature);
}
PICK(GetTemperatureThreshold, unsigned, which == 0 ? 95 : 90)
GET(GetPowerUsage, unsigned, d.power_mw < 0 ? -1 : (int64_t)llround(power_mw(&d)))
GET(GetTotalEnergyConsumption, unsigned long long, d.power_mw < 0 || d.energy_uj < 0 ? -1 : (int64_t)energy_mj(&d))
GET(GetPowerManagementMode, unsigned, 1)
GET(GetPowerManagementLimit, unsigned, d.power_limit_mw)
GET(GetPowerManagementDefaultLimit, unsigned, d.usual_power_limit_mw)
GET(GetEnforcedPowerLimit, unsigned, d.power_limit_mw)
PICK(GetClockInfo, unsigned, which == 2 ? d.memory_clock : d.sm_clock)
PICK(GetMaxClockInfo, unsigned, which == 2 ? d.memory_clock_max : d.sm_clock_max)
PICK(GetApplicationsClock, unsigned, which == 2 ? d.memory_clock_max : d.sm_clock_max)
GET(GetCurrentClocksEventReasons, unsigned long long, d.clock_reasons)
GET(GetCurrentClocksThrottleReasons, unsigned long long, d.clock_reasons)
GET(GetSupportedClocksEventReasons, unsigned long long, 0x1ff)
GET(GetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
PICK(GetPcieThroughput, unsigned, which == 0 ? d.pcie_tx_kb : d.pcie_rx_kb)
GET(GetCurrPcieLinkGeneration, unsigned, d.pcie_generation)
GET(GetMaxPcieLinkGeneration, unsigned, d.pcie_generation_max)
GET(GetCurrPcieLinkWidth, unsigned, d.pcie_width)
GET(GetMaxPcieLinkWidth, unsigned, d.pcie_width_max)
GET(GetPcieReplayCounter, unsigned, d.pcie_replays)
GET(GetPersistenceMode, unsigned, d.persistence)
GET(GetFanSpeed, unsigned, d.fan)
GET(GetPerformanceState, unsigned, d.performance_state)
GET(GetComputeMode, unsigned, 0)
GET(GetDisplayActive, unsigned, 0)
GET(GetRetiredPagesPendingStatus, unsigned, -1)
GET(GetMaxMigDeviceCount, unsigned, 0)

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    Device d;
    int failed = device(handle, &d);
    if (!failed) *major = (int)d.major, *minor = (int)d.minor;
    return failed;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    if (d.utilization < 0) return NOT_SUPPORTED;
    out[0] = (unsigned)d.utilization;
    out[1] = (unsigned)d.memory_utilization;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    unsigned long long used = d.memory_used + d.memory_reserved; /* as the real one: version 1 counts both */
    out[0] = d.memory_total, out[1] = d.memory_total - used, out[2] = used;
    return SUCCESS;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    out->total = d.memory_total, out->reserved = d.memory_reserved, out->used = d.memory_used;
    out->free = d.memory_total - d.memory_used - d.memory_reserved;
    return SUCCESS;
}

int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    if (d.ecc_enabled < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)d.ecc_enabled;
    return SUCCESS;
}

/* kind: 0 corrected, 1 uncorrected; period: 0 since the driver was loaded, 1 in its life */
static int64_t ecc(const Device *d, unsigned kind, unsigned period) {
    if (d->ecc_enabled <= 0) return -1;
    if (period == 0) return kind == 0 ? d->ecc_corrected : d->ecc_uncorrected;
    return kind == 0 ? d->ecc_corrected_total : d->ecc_uncorrected_total;
}
int nvmlDeviceGetTotalEccErrors(void *handle, unsigned kind, unsigned period, unsigned long long *out) {
    VALUE(unsigned long long, ecc(&d, kind, period));
}
int nvmlDeviceGetMemoryErrorCounter(void *handle, unsigned kind, unsigned period, unsigned place,
                                    unsigned long long *out) {
    VALUE(unsigned long long, place == 2 ? ecc(&d, kind, period) : 0); /* all of them in the device's memory */
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    if (d.rows_corrected < 0) return NOT_SUPPORTED;
    *corrected = (unsigned)d.rows_corrected, *uncorrected = (unsigned)d.rows_uncorrected;
    *pending = (unsigned)d.rows_pending, *failure = (unsigned)d.rows_failed;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    if (d.mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)d.mig;
    return SUCCESS;
}

/* Links are numbered from those that are up; of those behind them the device has none. */
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    if (d.links + d.links_down <= 0) return NOT_SUPPORTED;
    if (link >= d.links + d.links_down) return INVALID_ARGUMENT;
    *out = link < d.links;
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency_us;
    int type, failed;
    unsigned long long value;
} FieldValue;
int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *out) {
    Device d;
    int failed = device(handle, &d);
    for (int i = 0; i < count && !failed; i++) {
        out[i].type = 3, out[i].value = i ? 0 : (unsigned long long)d.link_errors;
        out[i].failed = i == count - 1 || d.link_errors < 0 ? NOT_SUPPORTED : SUCCESS; /* not all are known everywhere */
    }
    return failed;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    memset(out, 0, sizeof *out);
    strcpy(out->bus_id, d.bus);
    sscanf(d.bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v2(void *handle, Pci *out) { return nvmlDeviceGetPciInfo_v3(handle, out); }
int nvmlDeviceGetPciInfo(void *handle, Pci *out) { return nvmlDeviceGetPciInfo_v3(handle, out); }

typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } ProcessInfo;
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    Device d;
    int failed = device(handle, &d);
    if (failed) return failed;
    unsigned room = out ? *count : 0;
    *count = (unsigned)d.num_processes;
    if (room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (ProcessInfo){(unsigned)d.processes[i].pid, (unsigned long long)d.processes[i].memory, ~0u, ~0u};
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, ProcessInfo *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    (void)out;
    Device d;
    *count = 0;
    return device(handle, &d);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, out);
}
