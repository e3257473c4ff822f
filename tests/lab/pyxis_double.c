/* A plug-in for Slurm with the options of NVIDIA's pyxis, for the lab. It is not pyxis: an image is a folder, which
   becomes the root of the task, with the mounts that the options name. Options, their parsing by srun, their way to
   the node and the start of the task are Slurm's own. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis_double, 1);

enum { IMAGE, MOUNTS, WORKDIR, WRITABLE, KINDS };
static char values[KINDS][65536];

static int take(int kind, const char *value, int remote) {
    (void)remote;
    snprintf(values[kind], sizeof values[kind], "%s", value ? value : "1");
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "the image of the container", 1, IMAGE, take},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "bind mounts", 1, MOUNTS, take},
    {"container-workdir", "PATH", "working directory in the container", 1, WORKDIR, take},
    {"container-writable", NULL, "make the root writable", 0, WRITABLE, take},
    SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_init(spank_t sp, int argc, char **argv) {
    (void)argc, (void)argv;
    for (int i = 0; options[i].name; i++)
        if (spank_option_register(sp, &options[i]) != ESPANK_SUCCESS) return -1;
    return 0;
}

static int failed(const char *what, const char *path) {
    slurm_error("pyxis: %s %s: %s", what, path, strerror(errno));
    return -1;
}

/* Create a missing mount point, as the real one does. */
static void make_point(const char *source, char *target) {
    struct stat kind;
    for (char *at = target + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(target, 0755);
        *at = '/';
    }
    if (stat(source, &kind) == 0 && S_ISDIR(kind.st_mode)) mkdir(target, 0755);
    else { FILE *file = fopen(target, "a"); if (file) fclose(file); }
}

static int bind(const char *source, const char *inside, int read_only) {
    static char target[PATH_MAX];
    snprintf(target, sizeof target, "%.2000s%.2000s", values[IMAGE], inside);
    make_point(source, target);
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL)) return failed("cannot mount", source);
    if (read_only && mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL)) return failed("remount", target);
    return 0;
}

int slurm_spank_task_init(spank_t sp, int argc, char **argv) {
    struct stat kind;
    (void)sp, (void)argc, (void)argv;
    if (!values[IMAGE][0]) return 0;
    if (stat(values[IMAGE], &kind) || !S_ISDIR(kind.st_mode)) {
        slurm_error("pyxis: failed to import docker image %s", values[IMAGE]);
        return -1;
    }
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)) return failed("unshare", "");
    if (mount(values[IMAGE], values[IMAGE], NULL, MS_BIND, NULL)) return failed("cannot mount", values[IMAGE]);
    const char *always[] = {"/proc", "/sys", "/dev"};
    for (int i = 0; i < 3; i++) if (bind(always[i], always[i], 0)) return -1;
    if (bind("/tmp", "/tmp", 0)) return -1;
    for (char *rest = values[MOUNTS], *entry; (entry = strsep(&rest, ",")) && *entry;) {
        char *source = strsep(&entry, ":"), *inside = strsep(&entry, ":");
        if (bind(source, inside ? inside : source, entry && strcmp(entry, "ro") == 0)) return -1;
    }
    if (chroot(values[IMAGE])) return failed("chroot", values[IMAGE]);
    if (chdir(values[WORKDIR][0] ? values[WORKDIR] : "/")) return failed("chdir", values[WORKDIR]);
    return 0;
}
