/* A libnvidia-ml that answers some calls and refuses others, as containers, WSL2 and MIG do.
   Built by test_nvml.py; FAKE_NVML=hopper adds the GPM counters. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, UNKNOWN = 999 };
typedef void *device;

static int samples_alive;

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlShutdown(void) { return samples_alive ? UNKNOWN : OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    *out = (device)1;
    return index == 0 ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    *out = (device)1;
    return strcmp(uuid, "GPU-1") ? INVALID_ARGUMENT : OK;
}
int nvmlDeviceGetName(device d, char *name, unsigned size) { strncpy(name, "NVIDIA H200", size); return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.1", size); return OK; }
int nvmlDeviceGetClockInfo(device d, int kind, unsigned *mhz) { *mhz = kind == 1 ? 1500 : 3201; return OK; }
int nvmlDeviceGetMaxClockInfo(device d, int kind, unsigned *mhz) { return NOT_SUPPORTED; }
int nvmlDeviceGetPowerUsage(device d, unsigned *milliwatts) { return UNKNOWN; }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius) { *celsius = 41; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *mask) { *mask = 0x1004; return OK; }
int nvmlDeviceGetMemoryInfo(device d, unsigned long long out[3]) {
    out[0] = 150000; out[1] = 100000; out[2] = 50000;
    return OK;
}

/* GPM, laid out as in nvml.h. */
struct support { unsigned version, supported; };
struct metric { unsigned id; int status; double value; const char *names[3]; };
struct request { unsigned version, count; void *first, *second; struct metric metrics[]; };

static int hopper(void) { const char *kind = getenv("FAKE_NVML"); return kind && !strcmp(kind, "hopper"); }
int nvmlGpmQueryDeviceSupport(device d, struct support *out) { out->supported = (unsigned)hopper(); return OK; }
int nvmlGpmSampleAlloc(void **out) { *out = malloc(8); samples_alive++; return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); samples_alive--; return OK; }
int nvmlGpmSampleGet(device d, void *sample) { return OK; }
int nvmlGpmMetricsGet(struct request *request) {
    if (request->version != 1 || !request->first || request->first == request->second) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        struct metric *metric = &request->metrics[i];
        metric->status = metric->id == 5 ? NOT_SUPPORTED : OK;
        metric->value = 10.0 * metric->id;
    }
    return OK;
}
