"""Goes into a root directory and becomes a command there. Run by root, in a mount namespace of its own:

    unshare --mount --propagation private python3 -I inside.py ROOT PLAN COMMAND...

PLAN is `{}` for the command as root, or what a service's unit asks for (JSON): the user, the directory that can be written to, the
limit of open files, the umask, and the numbers of the system calls that are allowed. Any other call kills the process, where systemd
would make it an error: the tests must not overlook one. Left out of the unit are the namespace of users, and the filters of address
families and of namespaces.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import subprocess
import sys

PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 22, 24, 38, 65
PR_MDWE_REFUSE_EXEC_GAIN, SECCOMP_MODE_FILTER = 1, 2
# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW = 0x80000000, 0x7FFF0000
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E}
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4

libc = ctypes.CDLL(None, use_errno=True)


def main():
    root, plan, *command = sys.argv[1:]
    plan = json.loads(plan)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **plan.get("environment", {})}
    if not plan:
        mount("-t", "proc", "proc", f"{root}/proc")
        enter(root)
        os.execvpe(command[0], command, {**environment, "DEBIAN_FRONTEND": "noninteractive"})
    # ProtectSystem=strict, StateDirectory=, PrivateTmp=, ProtectProc=invisible
    mount("--bind", root, root)
    mount("--bind", root + plan["writable"], root + plan["writable"])
    mount("-o", "remount,bind,ro", root)
    for directory in ("/tmp", "/var/tmp", "/run"):
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root + directory)
    mount("-t", "proc", "-o", "hidepid=invisible", "proc", f"{root}/proc")
    with open("/proc/sys/kernel/cap_last_cap") as last:
        capabilities = range(int(last.read()) + 1)
    enter(root)
    become(plan, capabilities)
    os.execve(command[0], command, environment)


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def enter(root):
    os.chroot(root)
    os.chdir("/")


def become(plan, capabilities):
    resource.setrlimit(resource.RLIMIT_NOFILE, (plan["files"], plan["files"]))
    os.umask(plan["umask"])
    for capability in capabilities:
        prctl(PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(plan["group"], plan["group"], plan["group"])
    os.setresuid(plan["user"], plan["user"], plan["user"])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # MemoryDenyWriteExecute=, which Linux knows from 6.3 on.
    libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
    if plan["allowed"] is not None:
        allow_only(plan["allowed"])


def allow_only(numbers):
    """A filter of seccomp, from here on: seccomp(2)."""
    kill = (RETURN, 0, 0, SECCOMP_RET_KILL_PROCESS)
    program = [(LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET), (JUMP_IF_EQUAL, 1, 0, AUDIT_ARCHITECTURES[platform.machine()]), kill,
               (LOAD_WORD, 0, 0, NUMBER_OFFSET)]
    for number in numbers:
        program += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, SECCOMP_RET_ALLOW)]
    program.append(kill)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def prctl(option, first, second=0):
    done = libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if done != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    main()
