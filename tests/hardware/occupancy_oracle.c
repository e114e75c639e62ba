/* NVIDIA's own calculator behind one plain function; built by test_occupancy.py. */
#include <stddef.h>
#include "cuda_occupancy.h"

int occupancy(int major, int minor, int max_warps, long shared_sm, long shared_optin, long reserved,
              int registers, int threads, long static_shared, long dynamic_shared, int out[5]) {
    cudaOccDeviceProp device = {0};
    device.computeMajor = major;
    device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = max_warps * 32;
    device.regsPerBlock = 65536;
    device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 49152;
    device.sharedMemPerMultiprocessor = (size_t)shared_sm;
    device.sharedMemPerBlockOptin = (size_t)shared_optin;
    device.reservedSharedMemPerBlock = (size_t)reserved;
    device.numSms = 1;
    cudaOccFuncAttributes function = {0};
    function.maxThreadsPerBlock = 1024;
    function.numRegs = registers;
    function.sharedSizeBytes = (size_t)static_shared;
    function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = (size_t)dynamic_shared;
    function.numBlockBarriers = 1;
    cudaOccDeviceState state = {0};
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads,
                                                         (size_t)dynamic_shared);
    out[0] = result.activeBlocksPerMultiprocessor;
    out[1] = result.blockLimitRegs;
    out[2] = result.blockLimitSharedMem;
    out[3] = result.blockLimitWarps;
    out[4] = result.blockLimitBlocks;
    return status;
}
