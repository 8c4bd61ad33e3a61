/* Preloaded into a child of the test: a sync of the database file takes 2.7 seconds, as 8000 random pages do on a disk with
   3000 operations a second. Every such sync adds a byte to the file that SLOW_SYNC_LOG names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void slow(int fd) {
  static const char suffix[] = "/limits.db";
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  size_t end = sizeof suffix - 1;
  if (length < (ssize_t)end || memcmp(path + length - end, suffix, end) != 0) return;
  const char *log = getenv("SLOW_SYNC_LOG");
  int out = log ? open(log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (out >= 0) {
    if (write(out, ".", 1) != 1) abort();
    close(out);
  }
  struct timespec pause = {2, 700000000};
  nanosleep(&pause, NULL);
}

int fsync(int fd) {
  slow(fd);
  return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
  slow(fd);
  return (int)syscall(SYS_fdatasync, fd);
}
