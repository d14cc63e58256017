// Random bytes as Rust's standard library asks Windows for them. Wine before 9 has no library of this name; it is put beside
// the program there, and only there.
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *bytes, unsigned long count);

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *bytes, unsigned long long count) {
    while (count > 0) {
        unsigned long part = count < 65536 ? (unsigned long)count : 65536;
        if (!SystemFunction036(bytes, part)) {
            return 0;
        }
        bytes += part;
        count -= part;
    }
    return 1;
}
