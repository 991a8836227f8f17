// Where the code and the variables of a submission's object begin, by the order of linking (guard.h).
extern "C" {
void worklog_text_begin() {}
char worklog_data_begin = 1;
char worklog_bss_begin = 0;
__thread char worklog_shared_begin = 0;
}
